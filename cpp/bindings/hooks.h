#pragma once

#include "genai/core/hooks.h"

#include <pybind11/pybind11.h>

#include <memory>

namespace genai::bindings {

/// The hook for a Python object with a `process` method. The same object gives the same hook while any request holds
/// it, so that its rows are handed over in one call. Requires the GIL.
std::shared_ptr<LogitsHook> logits_hook(const pybind11::object& processor);

/// The same for an object with a `sample` method.
std::shared_ptr<SamplerHook> sampler_hook(const pybind11::object& sampler);

}  // namespace genai::bindings
