#pragma once

#include "genai/core/sampling_params.h"

#include <cstdint>

namespace genai::sampling {

/// Throws InvalidArgument (parameter, value, limit) when `params` do not fit a vocabulary: ids out of range, every
/// token forbidden, NaN, ranges of `onnx_genai.SamplingParams`. top_k above the vocabulary is not an error.
void validate(const SamplingParams& params, std::int64_t vocab_size);

}  // namespace genai::sampling
