#include "genai/ort/custom_op.h"

#include "genai/ort/library.h"
#include "genai/ort/status.h"
#include "genai/ort/value.h"

#include "onnxruntime/abi.h"

#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

namespace genai::ort {
namespace {

/// Version of the CustomOp table that we fill: the floor's.
constexpr std::uint32_t kTableVersion = ort_abi::kFloorApi;
constexpr int kOpVersion = 1;

ort_abi::ErrorCode status_code(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  if (ours == nullptr) return ort_abi::ErrorCode::kFail;
  switch (ours->code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kContextOverflow:
    case ErrorCode::kBadPackage:
      return ort_abi::ErrorCode::kInvalidArgument;
    case ErrorCode::kUnsupported:
      return ort_abi::ErrorCode::kNotImplemented;
    case ErrorCode::kNotFound:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kQueueFull:
    case ErrorCode::kDeadlineExceeded:
    case ErrorCode::kAborted:
    case ErrorCode::kBackend:
    case ErrorCode::kInternal:
      return ort_abi::ErrorCode::kFail;
  }
  return ort_abi::ErrorCode::kFail;
}

/// Runs `work` and turns what it throws into a status.
template <typename Work>
ort_abi::Status* guarded(const ort_abi::Api& api, const Work& work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    return api.call<ort_abi::CreateStatus>(status_code(error), error.what());
  } catch (...) {
    return api.call<ort_abi::CreateStatus>(ort_abi::ErrorCode::kFail, "unknown error");
  }
}

Dims tensor_dims(const ort_abi::Api& api, const ort_abi::Value* value) {
  if (api.has<ort_abi::GetTensorElementTypeAndShapeDataReference>()) {
    auto type = ort_abi::ElementType::kUndefined;
    const std::int64_t* dims = nullptr;
    std::size_t rank = 0;
    throw_if_failed(api, api.call_newer<ort_abi::GetTensorElementTypeAndShapeDataReference>(value, &type, &dims, &rank),
                    "ONNX Runtime could not read a shape");
    check(rank <= Dims::kMaxRank, "a tensor has more than 8 dimensions");
    return Dims(std::span(dims, rank));
  }
  ort_abi::TensorTypeAndShapeInfo* info = nullptr;
  throw_if_failed(api, api.call<ort_abi::GetTensorTypeAndShape>(value, &info), "ONNX Runtime could not read a shape");
  std::array<std::int64_t, Dims::kMaxRank> dims{};
  std::size_t rank = 0;
  StatusText status = take_status(
      api, api.call<ort_abi::GetDimensionsCount>(static_cast<const ort_abi::TensorTypeAndShapeInfo*>(info), &rank));
  if (status.code == 0 && rank <= Dims::kMaxRank) {
    status = take_status(api, api.call<ort_abi::GetDimensions>(
                                  static_cast<const ort_abi::TensorTypeAndShapeInfo*>(info), dims.data(), rank));
  }
  api.call<ort_abi::ReleaseTensorTypeAndShapeInfo>(info);
  if (status.code != 0) throw Error(ErrorCode::kBackend, "ONNX Runtime could not read a shape: " + status.message);
  check(rank <= Dims::kMaxRank, "a tensor has more than 8 dimensions");
  return Dims(std::span(std::as_const(dims)).first(rank));
}

KernelTensor read_tensor(const ort_abi::Api& api, const ort_abi::Value* value) {
  KernelTensor tensor;
  tensor.dims = tensor_dims(api, value);
  void* data = nullptr;
  // The library's accessor for input data is the one for mutable data: KV is written through its input.
  throw_if_failed(api, api.call<ort_abi::GetTensorMutableData>(const_cast<ort_abi::Value*>(value), &data),
                  "ONNX Runtime could not give a tensor's data");
  static std::byte empty{};  // an empty tensor may have no data, but it is there
  tensor.data = data == nullptr ? &empty : static_cast<std::byte*>(data);
  return tensor;
}

/// What ONNX Runtime holds of a node's kernel.
struct Kernel {
  const ort_abi::Api* api;
  std::unique_ptr<OpKernel> kernel;
};

/// One parallel loop: keeps the first error of its bodies.
class Loop {
 public:
  Loop(void (*call)(void*, std::size_t), void* body) : call_(call), body_(body) {}

  static void run(void* self, std::size_t index) noexcept { static_cast<Loop*>(self)->run_one(index); }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void run_one(std::size_t index) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      call_(body_, index);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_ = true;
    }
  }

  void (*call_)(void*, std::size_t);
  void* body_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

std::int64_t KernelInfo::integer(const char* name, std::int64_t fallback) const {
  std::int64_t value = fallback;
  const StatusText status = take_status(api_, api_.call<ort_abi::KernelInfoGetAttributeInt64>(handle_, name, &value));
  return status.code == 0 ? value : fallback;
}

float KernelInfo::number(const char* name, float fallback) const {
  float value = fallback;
  const StatusText status = take_status(api_, api_.call<ort_abi::KernelInfoGetAttributeFloat>(handle_, name, &value));
  return status.code == 0 ? value : fallback;
}

KernelTensor KernelInfo::constant(std::size_t index) const {
  int is_constant = 0;
  const ort_abi::Value* value = nullptr;
  throw_if_failed(api_, api_.call<ort_abi::KernelInfoGetConstantInputTensor>(handle_, index, &is_constant, &value),
                  "ONNX Runtime could not give an operator's constant");
  if (is_constant == 0 || value == nullptr) return {};
  return read_tensor(api_, value);
}

std::string KernelInfo::node_name() const {
  std::size_t size = 0;  // with the closing zero
  take_status(api_, api_.call<ort_abi::KernelInfoGetNodeName>(handle_, static_cast<char*>(nullptr), &size));
  if (size == 0) return "";
  std::string name(size, '\0');
  const StatusText status = take_status(api_, api_.call<ort_abi::KernelInfoGetNodeName>(handle_, name.data(), &size));
  if (status.code != 0) return "";
  name.resize(size - 1);
  return name;
}

KernelTensor KernelContext::input(std::size_t index) const {
  const ort_abi::Value* value = nullptr;
  throw_if_failed(
      api_,
      api_.call<ort_abi::KernelContextGetInput>(static_cast<const ort_abi::KernelContext*>(handle_), index, &value),
      "ONNX Runtime could not give an operator's input");
  if (value == nullptr) return {};
  return read_tensor(api_, value);
}

KernelTensor KernelContext::output(std::size_t index, const Dims& dims) const {
  ort_abi::Value* value = nullptr;
  throw_if_failed(api_, api_.call<ort_abi::KernelContextGetOutput>(handle_, index, dims.data(), dims.rank(), &value),
                  "ONNX Runtime could not make an operator's output");
  check(value != nullptr, "an operator's output is missing");
  KernelTensor tensor;
  tensor.dims = dims;
  void* data = nullptr;
  throw_if_failed(api_, api_.call<ort_abi::GetTensorMutableData>(value, &data),
                  "ONNX Runtime could not give a tensor's data");
  tensor.data = static_cast<std::byte*>(data);
  return tensor;
}

void KernelContext::run_parallel(std::size_t count, void (*call)(void*, std::size_t), void* body) const {
  Loop loop(call, body);
  constexpr std::size_t kOneBatchPerThread = 0;
  throw_if_failed(api_,
                  api_.call<ort_abi::KernelContextParallelFor>(static_cast<const ort_abi::KernelContext*>(handle_),
                                                               &Loop::run, count, kOneBatchPerThread, &loop),
                  "ONNX Runtime could not run a parallel loop");
  loop.rethrow();
}

/// The table that ONNX Runtime calls, with what its functions need: they get the table's address.
struct OpDomain::Operator : ort_abi::CustomOp {
  Operator() : ort_abi::CustomOp{} {}

  OpDefinition definition;
  const ort_abi::Api* api = nullptr;

  static const Operator& of(const ort_abi::CustomOp* table) { return *static_cast<const Operator*>(table); }

  static ort_abi::Characteristic characteristic(const OpPort& port) {
    return port.optional ? ort_abi::Characteristic::kOptional : ort_abi::Characteristic::kRequired;
  }

  static ort_abi::Status* create(const ort_abi::CustomOp* self, const void* /*api*/, const ort_abi::KernelInfo* info,
                                 void** kernel) {
    const Operator& op = of(self);
    return guarded(*op.api, [&] {
      auto made = std::make_unique<Kernel>(Kernel{op.api, op.definition.create(KernelInfo(*op.api, info))});
      *kernel = made.release();  // ONNX Runtime gives it back to destroy()
    });
  }

  static ort_abi::Status* compute(void* kernel, ort_abi::KernelContext* context) {
    const Kernel& ours = *static_cast<const Kernel*>(kernel);
    return guarded(*ours.api, [&] {
      KernelContext view(*ours.api, context);
      ours.kernel->compute(view);
    });
  }

  static void destroy(void* kernel) { const std::unique_ptr<Kernel> owned(static_cast<Kernel*>(kernel)); }

  void fill() {
    using Op = const ort_abi::CustomOp*;
    version = kTableVersion;
    get_name = [](Op op) { return of(op).definition.name.c_str(); };
    get_execution_provider_type = [](Op) -> const char* { return nullptr; };  // the CPU
    get_input_type = [](Op op, std::size_t i) { return to_element_type(of(op).definition.inputs[i].dtype); };
    get_input_type_count = [](Op op) { return of(op).definition.inputs.size(); };
    get_output_type = [](Op op, std::size_t i) { return to_element_type(of(op).definition.outputs[i].dtype); };
    get_output_type_count = [](Op op) { return of(op).definition.outputs.size(); };
    kernel_destroy = &destroy;
    get_input_characteristic = [](Op op, std::size_t i) { return characteristic(of(op).definition.inputs[i]); };
    get_output_characteristic = [](Op op, std::size_t i) { return characteristic(of(op).definition.outputs[i]); };
    get_input_memory_type = [](Op, std::size_t) { return ort_abi::MemType::kDefault; };
    get_variadic_input_min_arity = [](Op) { return 1; };
    get_variadic_input_homogeneity = [](Op) { return 1; };
    get_variadic_output_min_arity = [](Op) { return 1; };
    get_variadic_output_homogeneity = [](Op) { return 1; };
    create_kernel_v2 = &create;
    kernel_compute_v2 = &compute;
    get_start_version = [](Op) { return kOpVersion; };
    get_end_version = [](Op) { return kOpVersion; };
  }
};

OpDomain::OpDomain(const ort_abi::Api& api, const std::string& name, std::vector<OpDefinition> definitions)
    : api_(std::make_shared<const ort_abi::Api>(api)) {
  make(name, std::move(definitions));
}

OpDomain::OpDomain(const void* api_base, const std::string& name, std::vector<OpDefinition> definitions) {
  const auto& base = *static_cast<const ort_abi::ApiBase*>(api_base);
  const int minor = supported_minor_version("onnxruntime", base.get_version_string());
  const void* const table = base.get_api(ort_abi::kFloorApi);
  if (table == nullptr) throw Error(ErrorCode::kBackend, "onnxruntime: it gives no function table.");
  api_ = std::make_shared<const ort_abi::Api>(table, minor);
  make(name, std::move(definitions));
}

void OpDomain::make(const std::string& name, std::vector<OpDefinition> definitions) {
  for (OpDefinition& definition : definitions) {
    auto op = std::make_unique<Operator>();
    op->definition = std::move(definition);
    op->api = api_.get();
    op->fill();
    operators_.push_back(std::move(op));
  }
  throw_if_failed(*api_, api_->call<ort_abi::CreateCustomOpDomain>(name.c_str(), &handle_),
                  "ONNX Runtime could not make the operator domain " + name);
  for (const std::unique_ptr<Operator>& op : operators_) {
    throw_if_failed(*api_,
                    api_->call<ort_abi::CustomOpDomainAdd>(handle_, static_cast<const ort_abi::CustomOp*>(op.get())),
                    "ONNX Runtime refused the operator " + op->definition.name);
  }
}

OpDomain::~OpDomain() {
  if (handle_ != nullptr) api_->call<ort_abi::ReleaseCustomOpDomain>(handle_);
}

void OpDomain::add_to(ort_abi::SessionOptions* options) const {
  throw_if_failed(*api_, api_->call<ort_abi::AddCustomOpDomain>(options, handle_),
                  "ONNX Runtime refused an operator domain");
}

ort_abi::Status* make_status(const void* api_base, const std::string& message) noexcept {
  const auto& base = *static_cast<const ort_abi::ApiBase*>(api_base);
  // Version 1 is given by every library, and these slots came with it.
  const void* const table = base.get_api(1);
  if (table == nullptr) return nullptr;
  return ort_abi::Api(table, 1).call<ort_abi::CreateStatus>(ort_abi::ErrorCode::kFail, message.c_str());
}

}  // namespace genai::ort
