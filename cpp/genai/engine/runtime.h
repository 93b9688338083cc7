#pragma once

#include "genai/runner/runtime_info.h"

#include <string>

namespace genai::engine {

/// What the floors above the engine may know of ONNX Runtime; see runner/runtime_info.h.
using runner::check_provider;
using runner::runtime_info;
using runner::RuntimeInfo;

}  // namespace genai::engine
