#include "errors.h"

#include <exception>

namespace py = pybind11;

namespace genai::bindings {
namespace {

const char* class_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgumentError";
    case ErrorCode::kContextOverflow:
      return "ContextOverflowError";
    case ErrorCode::kNotFound:
      return "NotFoundError";
    case ErrorCode::kUnsupported:
      return "UnsupportedError";
    case ErrorCode::kResourceExhausted:
      return "ResourceExhaustedError";
    case ErrorCode::kQueueFull:
      return "QueueFullError";
    case ErrorCode::kDeadlineExceeded:
      return "DeadlineError";
    case ErrorCode::kAborted:
      return "AbortedError";
    case ErrorCode::kBadPackage:
      return "PackageError";
    case ErrorCode::kBackend:
      return "BackendError";
    case ErrorCode::kInternal:
      return "InternalError";
  }
  return "InternalError";
}

py::object class_of(ErrorCode code) {
  return py::module_::import("onnx_genai.errors").attr(class_name(code));
}

}  // namespace

py::object make_exception(const Error& error) {
  return class_of(error.code())(error.what());
}

void register_error_translation() {
  py::register_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const py::object exception = make_exception(error);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
  });
}

}  // namespace genai::bindings
