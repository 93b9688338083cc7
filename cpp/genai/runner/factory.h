#pragma once

#include "genai/core/model_spec.h"
#include "genai/runner/model_runner.h"
#include "genai/runner/options.h"

#include <memory>

namespace genai::runner {

/// Loads the model and makes the decoder that fits spec.cache. Throws kNotFound, kBadPackage, kUnsupported, kBackend.
std::unique_ptr<ModelRunner> make_runner(const ModelSpec& spec, const RunnerOptions& options);

}  // namespace genai::runner
