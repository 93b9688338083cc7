#pragma once

#include <pybind11/pybind11.h>

namespace genai::bindings {

/// Plain data: ModelSpec and its parts, SamplingParams, TokenTable, Event and its parts.
void bind_data(pybind11::module_& module);

/// Engine and its options.
void bind_engine(pybind11::module_& module);

/// ONNX Runtime library, cores and memory of this machine.
void bind_system(pybind11::module_& module);

}  // namespace genai::bindings
