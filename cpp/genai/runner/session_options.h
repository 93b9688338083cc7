#pragma once

#include "genai/ort/session.h"
#include "genai/runner/options.h"

namespace genai::runner {

/// ONNX Runtime's options for a model that is loaded with ours. The CPU is no provider to name: it is always there.
ort::SessionOptions session_options(const RunnerOptions& options, int intra_op_threads);

}  // namespace genai::runner
