#pragma once

#include "genai/embed/encoder_spec.h"

#include <cstddef>
#include <span>

namespace genai::embed {

/// One vector of the vectors of a text's tokens.
/// tokens: float32 [num_tokens, width] without padding, num_tokens >= 1. out: float32 [width].
/// num_skipped: leading tokens that means and the maximum leave out (an instruction before the text); the others are at
/// least one, else none is left out. Sums are in double, so that the order of tokens costs no accuracy.
void pool(Pooling pooling, std::span<const float> tokens, std::size_t num_skipped, std::span<float> out);

}  // namespace genai::embed
