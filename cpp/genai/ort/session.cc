#include "genai/ort/session.h"

#include "genai/base/error.h"
#include "genai/ort/custom_op.h"
#include "genai/ort/lora_adapter.h"
#include "genai/ort/status.h"

#include "onnxruntime/abi.h"

#include <algorithm>

namespace genai::ort {
namespace {

/// Lets a session take its memory from the library's HostAllocator.
constexpr const char* kUseEnvAllocators = "session.use_env_allocators";

/// ONNX Runtime session options, freed with the object.
class OptionsHandle {
 public:
  OptionsHandle(const Library& library, const SessionOptions& options)
      : api_(library.api()), handle_(create(api_), Release{&api_}) {
    require(api_.call<ort_abi::SetSessionGraphOptimizationLevel>(handle_.get(), ort_abi::GraphOptimizationLevel::kAll),
            "ONNX Runtime refused the optimisation level");
    require(api_.call<ort_abi::DisableMemPattern>(handle_.get()), "ONNX Runtime refused to turn memory patterns off");
    require(api_.call<ort_abi::EnableCpuMemArena>(handle_.get()), "ONNX Runtime refused to turn the arena on");
    require(api_.call<ort_abi::SetIntraOpNumThreads>(handle_.get(), options.intra_op_threads),
            "ONNX Runtime refused intra_op_threads = " + std::to_string(options.intra_op_threads));
    add_config("session.intra_op.allow_spinning", options.spinning ? "1" : "0");
    // Else workers poll for tens of milliseconds after the last Run.
    add_config("session.force_spinning_stop", "1");
    if (library.has_host_allocator()) add_config(kUseEnvAllocators, "1");
    for (const auto& [key, value] : options.config) add_config(key, value);
    for (const OpDomain* const domain : options.domains) domain->add_to(handle_.get());
    for (const Provider& provider : options.providers) append_provider(library, handle_.get(), provider);
  }

  void add_config(const std::string& key, const std::string& value) {
    require(api_.call<ort_abi::AddSessionConfigEntry>(handle_.get(), key.c_str(), value.c_str()),
            "ONNX Runtime refused the session config entry " + key + " = " + value);
  }
  const ort_abi::SessionOptions* handle() const { return handle_.get(); }

 private:
  struct Release {
    const ort_abi::Api* api;
    void operator()(ort_abi::SessionOptions* options) const { api->call<ort_abi::ReleaseSessionOptions>(options); }
  };

  static ort_abi::SessionOptions* create(const ort_abi::Api& api) {
    ort_abi::SessionOptions* options = nullptr;
    throw_if_failed(api, api.call<ort_abi::CreateSessionOptions>(&options),
                    "ONNX Runtime could not make session options");
    return options;
  }

  void require(ort_abi::Status* status, const std::string& what) { throw_if_failed(api_, status, what); }

  const ort_abi::Api& api_;
  std::unique_ptr<ort_abi::SessionOptions, Release> handle_;
};

Port read_port(const Library& library, ort_abi::TypeInfo* type, char* name) {
  const ort_abi::Api& api = library.api();
  Port port;
  port.name = name;
  take_status(api, api.call<ort_abi::AllocatorFree>(library.cpu_allocator(), static_cast<void*>(name)));
  const ort_abi::TensorTypeAndShapeInfo* info = nullptr;
  take_status(api, api.call<ort_abi::CastTypeInfoToTensorInfo>(type, &info));
  if (info != nullptr) {
    auto element = ort_abi::ElementType::kUndefined;
    take_status(api, api.call<ort_abi::GetTensorElementType>(info, &element));
    port.dtype = from_element_type(element);
    std::size_t rank = 0;
    take_status(api, api.call<ort_abi::GetDimensionsCount>(info, &rank));
    port.dims.resize(rank);
    take_status(api, api.call<ort_abi::GetDimensions>(info, port.dims.data(), rank));
  }
  api.call<ort_abi::ReleaseTypeInfo>(type);
  return port;
}

template <typename Count, typename Name, typename Type>
std::vector<Port> read_ports_of(const Library& library, const ort_abi::Session* session) {
  const ort_abi::Api& api = library.api();
  std::size_t count = 0;
  throw_if_failed(api, api.call<Count>(session, &count), "ONNX Runtime could not read the model's inputs and outputs");
  std::vector<Port> ports;
  for (std::size_t index = 0; index < count; ++index) {
    ort_abi::TypeInfo* type = nullptr;
    char* name = nullptr;
    throw_if_failed(api, api.call<Type>(session, index, &type), "ONNX Runtime could not read a type");
    throw_if_failed(api, api.call<Name>(session, index, library.cpu_allocator(), &name),
                    "ONNX Runtime could not read a name");
    ports.push_back(read_port(library, type, name));
  }
  return ports;
}

const Port* find(const std::vector<Port>& ports, std::string_view name) {
  const auto found = std::find_if(ports.begin(), ports.end(), [&](const Port& port) { return port.name == name; });
  return found == ports.end() ? nullptr : &*found;
}

}  // namespace

RunOptions::RunOptions(const Library& library) : ort_library_(library) {
  throw_if_failed(library.api(), library.api().call<ort_abi::CreateRunOptions>(&handle_),
                  "ONNX Runtime could not make run options");
}

RunOptions::~RunOptions() {
  ort_library_.api().call<ort_abi::ReleaseRunOptions>(handle_);
}

void RunOptions::terminate() {
  take_status(ort_library_.api(), ort_library_.api().call<ort_abi::RunOptionsSetTerminate>(handle_));
}

void RunOptions::clear_terminate() {
  take_status(ort_library_.api(), ort_library_.api().call<ort_abi::RunOptionsUnsetTerminate>(handle_));
}

void RunOptions::add(const LoraAdapter& adapter) {
  throw_if_failed(ort_library_.api(),
                  ort_library_.api().call<ort_abi::RunOptionsAddActiveLoraAdapter>(
                      handle_, static_cast<const ort_abi::LoraAdapter*>(adapter.handle())),
                  "ONNX Runtime cannot run with the adapter");
}

bool RunOptions::can_profile() const {
  return ort_library_.api().has<ort_abi::RunOptionsEnableProfiling>();
}

void RunOptions::profile_to(const std::string& prefix) {
  throw_if_failed(ort_library_.api(),
                  ort_library_.api().call_newer<ort_abi::RunOptionsEnableProfiling>(handle_, prefix.c_str()),
                  "ONNX Runtime cannot record operators to " + prefix);
}

void RunOptions::stop_profiling() {
  take_status(ort_library_.api(), ort_library_.api().call_newer<ort_abi::RunOptionsDisableProfiling>(handle_));
}

Session::Session(const Library& library, const std::string& path, const SessionOptions& options)
    : ort_library_(library), handle_(nullptr, Release{&library}) {
  const OptionsHandle handle(library, options);
  ort_abi::Session* session = nullptr;
  const StatusText status = take_status(library.api(), library.api().call<ort_abi::CreateSession>(
                                                           library.env(), path.c_str(), handle.handle(), &session));
  if (status.code != 0) throw load_error(status, path);
  handle_.reset(session);
  read_ports();
}

Session::Session(const Library& library, const Bytes& bytes, const SessionOptions& options)
    : ort_library_(library), handle_(nullptr, Release{&library}) {
  OptionsHandle handle(library, options);
  if (!bytes.external_folder.empty()) {
    handle.add_config("session.model_external_initializers_file_folder_path", bytes.external_folder);
  }
  ort_abi::Session* session = nullptr;
  const StatusText status = take_status(library.api(), library.api().call<ort_abi::CreateSessionFromArray>(
                                                           library.env(), static_cast<const void*>(bytes.model.data()),
                                                           bytes.model.size(), handle.handle(), &session));
  if (status.code != 0) throw load_error(status, bytes.path);
  handle_.reset(session);
  read_ports();
}

void Session::Release::operator()(ort_abi::Session* session) const {
  library->api().call<ort_abi::ReleaseSession>(session);
  library->trim_host_allocator();
}

void Session::read_ports() {
  inputs_ =
      read_ports_of<ort_abi::SessionGetInputCount, ort_abi::SessionGetInputName, ort_abi::SessionGetInputTypeInfo>(
          ort_library_, handle_.get());
  outputs_ =
      read_ports_of<ort_abi::SessionGetOutputCount, ort_abi::SessionGetOutputName, ort_abi::SessionGetOutputTypeInfo>(
          ort_library_, handle_.get());
  overridable_ =
      read_ports_of<ort_abi::SessionGetOverridableInitializerCount, ort_abi::SessionGetOverridableInitializerName,
                    ort_abi::SessionGetOverridableInitializerTypeInfo>(ort_library_, handle_.get());
}

const Port* Session::find_input(std::string_view name) const {
  return find(inputs_, name);
}
const Port* Session::find_overridable(std::string_view name) const {
  return find(overridable_, name);
}
const Port* Session::find_output(std::string_view name) const {
  return find(outputs_, name);
}

RunFrame::RunFrame(const Session& session, std::vector<std::string> inputs, std::vector<std::string> outputs)
    : session_(session),
      input_names_(std::move(inputs)),
      output_names_(std::move(outputs)),
      inputs_(input_names_.size()),
      outputs_(output_names_.size()),
      input_handles_(input_names_.size()),
      output_handles_(output_names_.size()) {
  for (const std::string& name : input_names_) {
    if (session.find_input(name) == nullptr) {
      throw Error(ErrorCode::kBadPackage, "the graph has no input \"" + name + "\"");
    }
    input_name_pointers_.push_back(name.c_str());
  }
  for (const std::string& name : output_names_) {
    if (session.find_output(name) == nullptr) {
      throw Error(ErrorCode::kBadPackage, "the graph has no output \"" + name + "\"");
    }
    output_name_pointers_.push_back(name.c_str());
  }
}

void RunFrame::run(const RunOptions& options) {
  for (std::size_t i = 0; i < outputs_.size(); ++i) output_handles_[i] = outputs_[i].handle();
  const Library& library = session_.ort_library();
  const StatusText status = take_status(
      library.api(), library.api().call<ort_abi::Run>(
                         session_.handle(), options.handle(), input_name_pointers_.data(), input_handles_.data(),
                         inputs_.size(), output_name_pointers_.data(), outputs_.size(), output_handles_.data()));
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].empty() && output_handles_[i] != nullptr) outputs_[i] = Value(library, output_handles_[i]);
  }
  if (status.code != 0) throw run_error(status);
}

}  // namespace genai::ort
