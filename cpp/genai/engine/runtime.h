#pragma once

#include <string>

#include "genai/runner/runtime_info.h"

namespace genai::engine {

/// What the floors above the engine may know of ONNX Runtime; see runner/runtime_info.h.
using runner::RuntimeInfo;
using runner::runtime_info;

}  // namespace genai::engine
