#pragma once

#include "genai/base/ids.h"

#include <span>
#include <utility>

namespace genai::sampling {

/// Adds each bias to the logit of its id; -inf forbids it. A logit that is -inf stays so.
/// logits: float32 [vocab], changed in place. Ids outside the row are ignored. An id listed twice gets both.
/// Source: OpenAI API reference, `logit_bias`; transformers' SequenceBiasLogitsProcessor for single ids.
void apply_logit_bias(std::span<float> logits, std::span<const std::pair<TokenId, float>> biases);

}  // namespace genai::sampling
