#pragma once

#include <memory>
#include <string>
#include <vector>

namespace ort_abi {
class Api;
struct Allocator;
struct Env;
struct MemoryInfo;
struct Status;
}  // namespace ort_abi

namespace genai::ort {

class HostAllocator;

enum class LogSeverity { kVerbose, kInfo, kWarning, kError, kFatal };

/// Receives ONNX Runtime's log lines of severity warning and above. May be called from any thread, also after the
/// sessions are gone; must not throw.
using LogSink = void (*)(LogSeverity severity, const char* message);

/// A loaded ONNX Runtime library with its environment. Thread-safe.
///
/// There is one object for each file, made at the first load() and kept until the process ends: the environment is a
/// singleton inside the library, which other packages in the process may share, and unloading a library with threads
/// is not safe.
///
///     const ort::Library& library = ort::Library::load("/path/onnxruntime/capi/libonnxruntime.so.1.32.0");
class Library {
 public:
  /// Lowest supported minor version: ONNX Runtime 1.22.
  static constexpr int kMinMinorVersion = 22;

  /// Opens the library at `path` (absolute), or returns it when it is open already. Turns ONNX Runtime's telemetry off
  /// by setting ORT_DISABLE_TELEMETRY=1 unless the variable is set. Throws kInvalidArgument (path not absolute),
  /// kNotFound (no such file), kBackend (not a library, not ONNX Runtime, too old). About 40 ms the first time.
  static const Library& load(const std::string& path);

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  const std::string& path() const { return path_; }
  /// As the library says it, e.g. "1.32.0".
  const std::string& version() const { return version_; }
  int minor_version() const { return minor_version_; }
  const std::string& build_info() const { return build_info_; }

  /// Names of the execution providers in this build, e.g. "CPUExecutionProvider".
  std::vector<std::string> available_providers() const;

  /// Where log lines go; the default drops them. nullptr drops them again. Lines of an environment that another
  /// package made in this process go where that package sends them.
  static void set_log_sink(LogSink sink);

  // For the files of this folder.
  const ort_abi::Api& api() const { return *api_; }
  ort_abi::Env* env() const { return env_; }
  ort_abi::MemoryInfo* cpu_memory() const { return cpu_memory_; }
  ort_abi::Allocator* cpu_allocator() const { return cpu_allocator_; }
  /// Whether sessions may use HostAllocator: false when another package registered an allocator in the environment.
  bool has_host_allocator() const { return host_allocator_ != nullptr; }
  /// Gives memory that no session uses back to the system.
  void trim_host_allocator() const;
  /// Bytes that the sessions of all models hold in large pieces; 0 when they do not use HostAllocator.
  std::size_t host_allocator_used_bytes() const;

 private:
  explicit Library(const std::string& path);

  std::string path_;
  std::string version_;
  int minor_version_ = 0;
  std::string build_info_;
  std::shared_ptr<const ort_abi::Api> api_;  ///< shared only to keep the type incomplete here
  ort_abi::Env* env_ = nullptr;
  ort_abi::MemoryInfo* cpu_memory_ = nullptr;
  ort_abi::Allocator* cpu_allocator_ = nullptr;
  std::unique_ptr<HostAllocator> host_allocator_;
};

/// Minor number of an ONNX Runtime version: 32 of "1.32.0". Throws kBackend, naming the library at `path`, when that
/// version is not supported.
int supported_minor_version(const std::string& path, const std::string& version);

}  // namespace genai::ort
