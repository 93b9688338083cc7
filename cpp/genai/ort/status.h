#pragma once

#include "genai/base/error.h"

#include <string>
#include <string_view>

namespace ort_abi {
class Api;
struct Status;
}  // namespace ort_abi

namespace genai::ort {

/// What ONNX Runtime says went wrong.
struct StatusText {
  int code = 0;         ///< ONNX Runtime's number, 0 = ok
  std::string message;  ///< empty when ok
};

/// Reads and frees `status`; nullptr means ok.
StatusText take_status(const ort_abi::Api& api, ort_abi::Status* status);

/// Name of ONNX Runtime's error number, e.g. "INVALID_GRAPH".
std::string_view status_name(int code);

/// Throws kBackend with ONNX Runtime's code and text, beginning with `what`, unless `status` is nullptr.
/// Requires: `what` says what was tried ("ONNX Runtime could not create a tensor").
void throw_if_failed(const ort_abi::Api& api, ort_abi::Status* status, std::string_view what);

/// The error for a failed load of the model file `path`; looks at the file to say what is wrong with it.
Error load_error(const StatusText& status, const std::string& path);

/// The error for a failed Run: kAborted when it was told to stop, kResourceExhausted when memory ran out, else
/// kBackend.
Error run_error(const StatusText& status);

}  // namespace genai::ort
