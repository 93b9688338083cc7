#include "genai/ort/status.h"

#include "onnxruntime/abi.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

namespace genai::ort {
namespace {

namespace fs = std::filesystem;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string backend_text(const StatusText& status) {
  return "ONNX Runtime error " + std::to_string(status.code) + " (" + std::string(status_name(status.code)) +
         "): " + status.message;
}

/// Text between the first pair of `open` and `close` after `from`; empty when there is none.
std::string between(std::string_view text, std::string_view from, std::string_view open, std::string_view close) {
  const std::size_t start = text.find(from);
  if (start == std::string_view::npos) return "";
  const std::size_t left = text.find(open, start + from.size());
  if (left == std::string_view::npos) return "";
  const std::size_t right = text.find(close, left + open.size());
  if (right == std::string_view::npos) return "";
  return std::string(text.substr(left + open.size(), right - left - open.size()));
}

/// Whether the file begins like a Git LFS pointer: the few lines that stand for a file that was not downloaded.
bool is_lfs_pointer(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 24> head{};
  file.read(head.data(), head.size());
  return std::string_view(head.data(), static_cast<std::size_t>(file.gcount())) == "version https://git-lfs.";
}

Error bad_package(const std::string& path, const std::string& why, const std::string& fix) {
  return Error(ErrorCode::kBadPackage, path + ": " + why + " " + fix);
}

Error lfs_error(const std::string& path) {
  return bad_package(path, "this is a Git LFS pointer, not the file itself.",
                     "Run `git lfs pull` in the package's folder, or download the file again.");
}

/// A file next to the model that is a Git LFS pointer, if any. ONNX Runtime names the tensor, not the file, when
/// external data is too short.
std::optional<std::string> lfs_pointer_beside(const std::string& model_path) {
  std::error_code failed;
  const fs::path folder = fs::path(model_path).parent_path();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    if (entry.is_regular_file(failed) && is_lfs_pointer(entry.path().string())) return entry.path().string();
  }
  return std::nullopt;
}

/// Name of the operator that no library or execution provider knows; empty when that is not what went wrong.
std::string unknown_operator(const std::string& message) {
  if (contains(message, "is not a registered function/op")) {
    const std::string name = between(message, "Fatal error:", " ", "(");
    return name.empty() ? "an operator" : name;
  }
  if (contains(message, "No Op registered for ")) {
    const std::string name = between(message, "No Op registered", "for ", " ");
    return name.empty() ? "an operator" : name;
  }
  return "";
}

Error file_error(const StatusText& status, const std::string& path) {
  if (is_lfs_pointer(path)) return lfs_error(path);
  std::error_code failed;
  const std::uintmax_t size = fs::file_size(path, failed);
  if (!failed && size == 0) {
    return bad_package(path, "the file is empty.", "Copy or download it again.");
  }
  return bad_package(path,
                     "the file is not a whole ONNX model (" + std::to_string(failed ? 0 : size) +
                         " bytes; it is truncated or another kind of file).",
                     "Copy or download it again. " + backend_text(status));
}

}  // namespace

StatusText take_status(const ort_abi::Api& api, ort_abi::Status* status) {
  if (status == nullptr) return {};
  StatusText text;
  text.code = static_cast<int>(api.call<ort_abi::GetErrorCode>(status));
  text.message = api.call<ort_abi::GetErrorMessage>(status);
  api.call<ort_abi::ReleaseStatus>(status);
  return text;
}

std::string_view status_name(int code) {
  static constexpr std::array<std::string_view, 15> kNames = {"OK",
                                                              "FAIL",
                                                              "INVALID_ARGUMENT",
                                                              "NO_SUCHFILE",
                                                              "NO_MODEL",
                                                              "ENGINE_ERROR",
                                                              "RUNTIME_EXCEPTION",
                                                              "INVALID_PROTOBUF",
                                                              "MODEL_LOADED",
                                                              "NOT_IMPLEMENTED",
                                                              "INVALID_GRAPH",
                                                              "EP_FAIL",
                                                              "CANCELED",
                                                              "REQUIRES_COMPILATION",
                                                              "NOT_FOUND"};
  const auto index = static_cast<std::size_t>(code);
  return code >= 0 && index < kNames.size() ? kNames[index] : "UNKNOWN";
}

void throw_if_failed(const ort_abi::Api& api, ort_abi::Status* status, std::string_view what) {
  if (status == nullptr) return;
  throw Error(ErrorCode::kBackend, std::string(what) + ". " + backend_text(take_status(api, status)));
}

Error load_error(const StatusText& status, const std::string& path) {
  const std::string& message = status.message;
  const auto code = static_cast<ort_abi::ErrorCode>(status.code);
  if (code == ort_abi::ErrorCode::kNoSuchFile) {
    return Error(ErrorCode::kNotFound, path + ": no such model file. Check the path.");
  }
  if (fs::is_directory(path)) {
    return Error(ErrorCode::kBadPackage, path + ": this is a folder; a model file (.onnx) was expected.");
  }
  if (code == ort_abi::ErrorCode::kInvalidProtobuf || contains(message, "No graph was found in the protobuf")) {
    return file_error(status, path);
  }
  if (const std::string name = unknown_operator(message); !name.empty()) {
    return Error(ErrorCode::kUnsupported,
                 path + ": the model uses the operator " + name +
                     ", which this ONNX Runtime does not have. Use an onnxruntime version or build that has it, or "
                     "another export of the model. " +
                     backend_text(status));
  }
  if (contains(message, "External data path does not exist")) {
    const std::string file = between(message, "External data path does not exist", "\"", "\"");
    return bad_package(path, "its weights file " + file + " is missing.",
                       "Keep the model's external data files beside it.");
  }
  // Shape inference that needs a value which lies in an external file: the file itself is fine.
  const bool needs_inline_value = contains(message, "Cannot parse data from external tensors");
  if (!needs_inline_value && (contains(message, "xternal initializer") || contains(message, "xternal data"))) {
    if (const std::optional<std::string> pointer = lfs_pointer_beside(path)) return lfs_error(*pointer);
    return bad_package(path, "its external weights file cannot be read in full; it is truncated or of another model.",
                       "Copy or download it again. " + backend_text(status));
  }
  if (code == ort_abi::ErrorCode::kNotImplemented || contains(message, "Could not find an implementation for") ||
      contains(message, "Unrecognized attribute") || contains(message, "Unsupported model IR version") ||
      contains(message, "is under development and support")) {
    return Error(ErrorCode::kUnsupported,
                 path + ": this ONNX Runtime cannot run the model; a newer onnxruntime may. " + backend_text(status));
  }
  if (code == ort_abi::ErrorCode::kInvalidGraph) {
    return bad_package(path, "the graph is not valid.", "Export the model again. " + backend_text(status));
  }
  return Error(ErrorCode::kBackend, path + ": the model could not be loaded. " + backend_text(status));
}

Error run_error(const StatusText& status) {
  const std::string& message = status.message;
  if (contains(message, "terminate flag")) {
    return Error(ErrorCode::kAborted, "the model run was interrupted");
  }
  if (contains(message, "bad_alloc") || contains(message, "Failed to allocate memory")) {
    return Error(ErrorCode::kResourceExhausted,
                 "memory ran out while the model ran. Use shorter prompts, fewer requests at once or a smaller token "
                 "budget a step. " +
                     backend_text(status));
  }
  return Error(ErrorCode::kBackend, "the model run failed. " + backend_text(status));
}

}  // namespace genai::ort
