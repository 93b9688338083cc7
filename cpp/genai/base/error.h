#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace genai {

/// What the caller can do about an error; each code is one Python class (`onnx_genai/errors.py`).
enum class ErrorCode {
  kInvalidArgument,
  kContextOverflow,
  kNotFound,
  kUnsupported,
  kResourceExhausted,
  kQueueFull,
  kDeadlineExceeded,
  kAborted,
  kBadPackage,
  kBackend,
  kInternal,
};

/// The one exception of the core. The message says what, the value, the limit and how to fix it.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Throws Error(kInternal) with `what` unless `condition` holds. For broken invariants, not for bad input.
inline void check(bool condition, std::string_view what) {
  if (!condition) {
    throw Error(ErrorCode::kInternal, "internal error: " + std::string(what) + ". Please report this.");
  }
}

}  // namespace genai
