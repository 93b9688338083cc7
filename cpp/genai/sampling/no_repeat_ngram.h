#pragma once

#include "genai/base/ids.h"

#include <cstddef>
#include <span>

namespace genai::sampling {

/// Forbids each token that would complete an n-gram of the sequence a second time (size 1: every token seen).
/// logits: float32 [vocab], changed in place. tokens: prompt and output. size: 0 is off. Ids outside the row are
/// ignored. Cost: O(tokens). Source: transformers' NoRepeatNGramLogitsProcessor.
void ban_repeated_ngrams(std::span<float> logits, std::span<const TokenId> tokens, std::size_t size);

}  // namespace genai::sampling
