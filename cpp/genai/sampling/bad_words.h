#pragma once

#include "genai/base/ids.h"

#include <span>
#include <vector>

namespace genai::sampling {

/// Forbids the last id of each word whose other ids are the end of the sequence; a word of one id is always forbidden.
/// logits: float32 [vocab], changed in place. tokens: prompt and output. Ids outside the row are ignored.
/// Source: transformers' NoBadWordsLogitsProcessor (which lets a word alone that is just the EOS id; this does not).
void ban_bad_words(std::span<float> logits, std::span<const TokenId> tokens,
                   std::span<const std::vector<TokenId>> words);

}  // namespace genai::sampling
