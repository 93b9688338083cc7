#pragma once

#include "genai/sampling/token_counts.h"

#include <span>

namespace genai::sampling {

/// Subtracts frequency * (times generated) and, from tokens that were generated at all, presence. The prompt does not
/// count. logits: float32 [vocab], changed in place. Both penalties: 0 is off, negative ones reward repeats. Ids
/// outside the row are ignored. Cost: O(distinct tokens).
/// Source: OpenAI API guide, "frequency and presence penalties".
void apply_frequency_presence_penalty(std::span<float> logits, const TokenCounts& counts, float frequency,
                                      float presence);

}  // namespace genai::sampling
