#include "genai/ort/library.h"

#include "genai/base/error.h"
#include "genai/ort/host_allocator.h"
#include "genai/ort/status.h"

#include "onnxruntime/abi.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

namespace genai::ort {
namespace {

std::atomic<LogSink> log_sink{nullptr};

void forward_log(void* /*param*/, ort_abi::LoggingLevel severity, const char* /*category*/, const char* /*log_id*/,
                 const char* /*code_location*/, const char* message) {
  if (const LogSink sink = log_sink.load()) sink(static_cast<LogSeverity>(severity), message);
}

Error library_error(const std::string& path, const std::string& why) {
  return Error(ErrorCode::kBackend, path + ": " + why + " Install it anew: pip install --upgrade onnxruntime");
}

/// Calls functions whose answers are known, so that a wrong table is found here and not as a crash later.
void check_anchors(const ort_abi::Api& api, const std::string& path) {
  static constexpr const char* kText = "genai anchor";
  ort_abi::Status* status = api.call<ort_abi::CreateStatus>(ort_abi::ErrorCode::kInvalidGraph, kText);
  const StatusText read = take_status(api, status);
  const char* const build = api.call<ort_abi::GetBuildInfoString>();
  const bool as_expected = read.code == static_cast<int>(ort_abi::ErrorCode::kInvalidGraph) && read.message == kText &&
                           build != nullptr && std::strncmp(build, "ORT Build Info", 14) == 0;
  if (!as_expected) throw library_error(path, "its function table is not the expected one.");
}

}  // namespace

// ONNX Runtime's major version is 1, and its minor version is its API version.
int supported_minor_version(const std::string& path, const std::string& version) {
  char* end = nullptr;
  const long major = std::strtol(version.c_str(), &end, 10);
  const std::string supported = "1." + std::to_string(Library::kMinMinorVersion);
  if (end == version.c_str() || *end != '.' || major != 1) {
    throw library_error(path, "its version is \"" + version + "\"; supported: " + supported + " and later 1.x.");
  }
  const long minor = std::strtol(end + 1, nullptr, 10);
  if (minor < Library::kMinMinorVersion) {
    throw library_error(path, "this is ONNX Runtime " + version + "; " + supported + " or later is needed.");
  }
  return static_cast<int>(minor);
}

const Library& Library::load(const std::string& path) {
  // Kept until the process ends; see the class comment.
  static std::mutex mutex;
  static auto& libraries = *new std::map<std::string, std::unique_ptr<const Library>>;

  if (!std::filesystem::path(path).is_absolute()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the path of the ONNX Runtime library is \"" + path + "\"; allowed: an absolute path");
  }
  std::error_code failed;
  const std::string key = std::filesystem::canonical(path, failed).string();
  if (failed) {
    throw Error(ErrorCode::kNotFound, path + ": no ONNX Runtime library there. Install it: pip install onnxruntime");
  }
  const std::lock_guard lock(mutex);
  std::unique_ptr<const Library>& library = libraries[key];
  if (!library) library.reset(new Library(key));
  return *library;
}

Library::Library(const std::string& path) : path_(path) {
  setenv("ORT_DISABLE_TELEMETRY", "1", /*overwrite=*/0);  // must stand before the library is loaded
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    throw library_error(path, std::string("it cannot be loaded: ") + (why != nullptr ? why : "unknown error") + ".");
  }
  void* const symbol = dlsym(handle, "OrtGetApiBase");
  if (symbol == nullptr) throw library_error(path, "this is not ONNX Runtime (no function OrtGetApiBase).");
  const ort_abi::ApiBase* const base = reinterpret_cast<ort_abi::GetApiBase>(symbol)();
  if (base == nullptr) throw library_error(path, "it gives no function table.");

  // The version comes first: asking for a table that is too new prints to stderr.
  version_ = base->get_version_string();
  minor_version_ = supported_minor_version(path, version_);
  const void* const table = base->get_api(ort_abi::kFloorApi);
  if (table == nullptr) throw library_error(path, "it gives no function table.");
  api_ = std::make_shared<const ort_abi::Api>(table, minor_version_);
  check_anchors(*api_, path);

  build_info_ = api_->call<ort_abi::GetBuildInfoString>();
  throw_if_failed(*api_,
                  api_->call<ort_abi::CreateEnvWithCustomLogger>(&forward_log, nullptr, ort_abi::LoggingLevel::kWarning,
                                                                 "onnx-genai", &env_),
                  "ONNX Runtime could not start");
  throw_if_failed(*api_,
                  api_->call<ort_abi::CreateCpuMemoryInfo>(ort_abi::AllocatorType::kDevice, ort_abi::MemType::kDefault,
                                                           &cpu_memory_),
                  "ONNX Runtime could not describe host memory");
  throw_if_failed(*api_, api_->call<ort_abi::GetAllocatorWithDefaultOptions>(&cpu_allocator_),
                  "ONNX Runtime has no host allocator");
  auto allocator = std::make_unique<HostAllocator>(cpu_memory_);
  const StatusText registered = take_status(*api_, api_->call<ort_abi::RegisterAllocator>(env_, allocator->handle()));
  if (registered.code == 0) host_allocator_ = std::move(allocator);
}

Library::~Library() = default;

std::vector<std::string> Library::available_providers() const {
  char** names = nullptr;
  int count = 0;
  throw_if_failed(*api_, api_->call<ort_abi::GetAvailableProviders>(&names, &count),
                  "ONNX Runtime could not list its execution providers");
  std::vector<std::string> providers(names, names + count);
  take_status(*api_, api_->call<ort_abi::ReleaseAvailableProviders>(names, count));
  return providers;
}

void Library::trim_host_allocator() const {
  if (host_allocator_) host_allocator_->trim();
}

std::size_t Library::host_allocator_used_bytes() const {
  return host_allocator_ ? host_allocator_->used_bytes() : 0;
}

void Library::set_log_sink(LogSink sink) {
  log_sink.store(sink);
}

}  // namespace genai::ort
