#pragma once

#include "genai/base/error.h"

#include <pybind11/pybind11.h>

namespace genai::bindings {

/// Makes `genai::Error` arrive in Python as the class of `onnx_genai.errors` that its code names.
void register_error_translation();

/// The Python exception object for an error, not raised. Requires the GIL.
pybind11::object make_exception(const Error& error);

}  // namespace genai::bindings
