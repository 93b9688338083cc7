#include "genai/ort/custom_op.h"

#include "genai/ort/session.h"
#include "genai/ort/test_library.h"

#include "onnxruntime/abi.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace genai::ort {
namespace {

constexpr const char* kDomain = "genai.test";

/// An operator from the float input x to the float output y whose compute() is a function.
class FunctionKernel final : public OpKernel {
 public:
  using Function = std::function<void(KernelContext&)>;
  explicit FunctionKernel(Function function) : function_(std::move(function)) {}
  void compute(KernelContext& context) const override { function_(context); }

 private:
  Function function_;
};

OpDefinition definition(const FunctionKernel::Function& function) {
  return {.name = "Test",
          .inputs = {{DType::kFloat32}, {DType::kFloat32, /*optional=*/true}},
          .outputs = {{DType::kFloat32}},
          .create = [function](const KernelInfo&) { return std::make_unique<FunctionKernel>(function); }};
}

/// Runs the domain's operator on `x` and returns y.
std::vector<float> run_in(const Library& library, const OpDomain& domain, std::vector<float> x, int threads = 2) {
  SessionOptions options;
  options.intra_op_threads = threads;
  options.domains = {&domain};
  const Session session(library, Session::Bytes{one_node_model("Test", kDomain), "", "test.onnx"}, options);
  RunFrame frame(session, {"x"}, {"y"});
  frame.set_input(0, Value::view(library, DType::kFloat32, {static_cast<std::int64_t>(x.size())}, x.data()));
  const RunOptions run_options(library);
  frame.run(run_options);
  const Value y = frame.take_output(0);
  return {y.data_as<float>(), y.data_as<float>() + y.dims().num_elements()};
}

std::vector<float> run(const Library& library, const OpDefinition& op, std::vector<float> x) {
  return run_in(library, OpDomain(library.api(), kDomain, {op}), std::move(x));
}

OpDefinition doubling() {
  return definition([](KernelContext& context) {
    const KernelTensor x = context.input(0);
    const KernelTensor y = context.output(0, x.dims);
    for (std::int64_t i = 0; i < x.dims[0]; ++i) y.as<float>()[i] = 2 * x.as<const float>()[i];
  });
}

/// What the library at `path` gives to those who open it themselves.
const ort_abi::ApiBase* api_base(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<ort_abi::GetApiBase>(dlsym(handle, "OrtGetApiBase"))();
}

template <typename Work>
std::string message_of(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("CustomOp_ThatDoubles_GetsItsInputAndGivesItsOutput") {
  const auto path = test_library();
  if (!path) return;

  CHECK(run(Library::load(*path), doubling(), {1.0F, -3.0F}) == std::vector<float>{2.0F, -6.0F});
}

TEST_CASE("OpDomain_LibraryThatSaysItIsOlder_UsesOnlyItsFunctions") {
  const auto path = test_library();
  if (!path) return;
  static const ort_abi::ApiBase* real = nullptr;
  real = api_base(*path);
  const ort_abi::ApiBase older{[](std::uint32_t version) { return real->get_api(version); }, [] { return "1.22.0"; }};

  const OpDomain domain(&older, kDomain, {doubling()});

  CHECK(run_in(Library::load(*path), domain, {4.0F}) == std::vector<float>{8.0F});
}

TEST_CASE("OpDomain_LibraryThatIsTooOld_IsRefused") {
  const ort_abi::ApiBase too_old{nullptr, [] { return "1.21.1"; }};

  const std::string message = message_of([&] { const OpDomain domain(&too_old, kDomain, {}); });

  CHECK(message.find("this is ONNX Runtime 1.21.1; 1.22 or later is needed") != std::string::npos);
}

TEST_CASE("CustomOp_OptionalInputLeftOut_IsNotPresent") {
  const auto path = test_library();
  if (!path) return;
  bool is_present = true;
  const OpDefinition op = definition([&](KernelContext& context) {
    is_present = context.input(0).present() && context.input(1).present();
    context.output(0, {1}).as<float>()[0] = 0;
  });

  // A trailing input that the node does not list, as exporters leave it out.
  run(Library::load(*path), op, {1.0F});
  CHECK_FALSE(is_present);
}

TEST_CASE("CustomOp_ParallelFor_CallsEachIndexOnce") {
  const auto path = test_library();
  if (!path) return;
  const OpDefinition op = definition([](KernelContext& context) {
    const KernelTensor y = context.output(0, {100});
    for (int i = 0; i < 100; ++i) y.as<float>()[i] = 0;
    auto body = [&](std::size_t index) { y.as<float>()[index] += 1; };
    context.parallel_for(100, body);
  });

  CHECK(run(Library::load(*path), op, {1.0F}) == std::vector<float>(100, 1.0F));
}

/// As kernels do that ask for a thread of every core: the session may have been given fewer.
TEST_CASE("CustomOp_ParallelForOfMoreIndicesThanThreads_StaysOnTheSessionsThreads") {
  const auto path = test_library();
  if (!path) return;
  const Library& library = Library::load(*path);
  for (const int num_threads : {1, 2, 3}) {
    CAPTURE(num_threads);
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::vector<int> calls(500);
    const OpDefinition op = definition([&](KernelContext& context) {
      context.output(0, {1}).as<float>()[0] = 0;
      auto body = [&](std::size_t index) {
        ++calls[index];
        const std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
      };
      context.parallel_for(calls.size(), body);
    });

    run_in(library, OpDomain(library.api(), kDomain, {op}), {1.0F}, num_threads);

    CHECK(calls == std::vector<int>(500, 1));
    CHECK(threads.size() <= static_cast<std::size_t>(num_threads));
    if (num_threads == 1) CHECK(threads == std::set<std::thread::id>{std::this_thread::get_id()});
  }
}

TEST_CASE("CustomOp_ThatThrows_FailsTheRunWithItsText") {
  const auto path = test_library();
  if (!path) return;
  const Library& library = Library::load(*path);
  const OpDefinition ours =
      definition([](KernelContext&) { throw Error(ErrorCode::kInvalidArgument, "x is 7; allowed: up to 6"); });
  const OpDefinition foreign = definition([](KernelContext&) { throw std::runtime_error("foreign"); });
  const OpDefinition unknown = definition([](KernelContext&) { throw 1; });
  const OpDefinition parallel = definition([](KernelContext& context) {
    auto body = [](std::size_t index) {
      if (index == 40) throw Error(ErrorCode::kInternal, "index 40");
    };
    context.parallel_for(100, body);
  });

  CHECK(message_of([&] { run(library, ours, {1.0F}); }).find("x is 7; allowed: up to 6") != std::string::npos);
  CHECK(message_of([&] { run(library, foreign, {1.0F}); }).find("foreign") != std::string::npos);
  CHECK(message_of([&] { run(library, unknown, {1.0F}); }).find("unknown error") != std::string::npos);
  CHECK(message_of([&] { run(library, parallel, {1.0F}); }).find("index 40") != std::string::npos);
}

TEST_CASE("CustomOp_KernelThatCannotBeMade_FailsTheLoadWithItsText") {
  const auto path = test_library();
  if (!path) return;
  OpDefinition op = definition([](KernelContext&) {});
  op.create = [](const KernelInfo& info) -> std::unique_ptr<OpKernel> {
    throw Error(ErrorCode::kInvalidArgument, info.node_name() + ": no attribute a, " +
                                                 std::to_string(info.integer("a", 5)) + " " +
                                                 std::to_string(info.number("b", 0.5F)));
  };

  CHECK(message_of([&] { run(Library::load(*path), op, {1.0F}); }).find("n: no attribute a, 5 0.5") !=
        std::string::npos);
}

}  // namespace
}  // namespace genai::ort
