#pragma once

#include "genai/base/ids.h"

#include <span>

namespace genai::sampling {

/// Leaves `token` as the only choice, even where it was forbidden: its logit becomes 0, all others -inf.
/// logits: float32 [vocab], changed in place. Requires: `token` is in the row.
/// Source: transformers' ForcedBOSTokenLogitsProcessor.
void force_token(std::span<float> logits, TokenId token);

}  // namespace genai::sampling
