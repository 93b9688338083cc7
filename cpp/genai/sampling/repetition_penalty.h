#pragma once

#include "genai/sampling/token_counts.h"

#include <span>

namespace genai::sampling {

/// Makes tokens of the prompt and the output less likely: a positive logit is divided by `penalty`, any other is
/// multiplied, once a distinct token however often it occurs.
/// logits: float32 [vocab], changed in place. penalty: > 0; 1 leaves the row untouched; below 1 rewards repeats. Ids
/// outside the row are ignored. Cost: O(distinct tokens).
/// Source: Keskar et al. 2019, section 4.1; transformers' RepetitionPenaltyLogitsProcessor for negative logits.
void apply_repetition_penalty(std::span<float> logits, const TokenCounts& counts, float penalty);

}  // namespace genai::sampling
