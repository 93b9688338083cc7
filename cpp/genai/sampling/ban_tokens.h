#pragma once

#include "genai/base/ids.h"

#include <span>

namespace genai::sampling {

/// Forbids `banned`: suppress_tokens at every position, begin_suppress_tokens at the first, EOS and stop ids before
/// min_new_tokens. logits: float32 [vocab], changed in place. Ids outside the row are ignored.
/// Source: transformers' SuppressTokensLogitsProcessor, SuppressTokensAtBeginLogitsProcessor and
/// MinNewTokensLengthLogitsProcessor.
void ban_tokens(std::span<float> logits, std::span<const TokenId> banned);

}  // namespace genai::sampling
