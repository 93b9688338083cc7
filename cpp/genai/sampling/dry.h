#pragma once

#include "genai/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace genai::sampling {

struct DryOptions {
  float multiplier = 0.0F;  ///< >= 0; 0 is off
  float base = 1.75F;       ///< >= 1
  std::size_t allowed_length = 2;
  std::span<const TokenId> sequence_breakers = {};  ///< a loan that ends with the call
};

/// Buffers of apply_dry(), to be reused: O(tokens).
struct DryScratch {
  std::vector<std::size_t> match_lengths;
  std::vector<std::pair<TokenId, std::size_t>> followers;
};

/// Penalises tokens that would go on with a repetition. Where the `length` tokens before an earlier token are the same
/// as the last `length` tokens of the sequence, that token loses multiplier * base^(length - allowed_length) if length
/// >= allowed_length; of several such places the longest counts. A breaker is never part of the compared tokens.
///
///     ... a b c X ... a b c | ?      length 3: X is penalised
///
/// logits: float32 [vocab], changed in place. tokens: prompt and output. Ids outside the row are ignored. A finite
/// logit stays finite. Cost: O(tokens), plus a sort of the places found.
/// Source: P. E. Weidmann, "DRY: a modern repetition penalty", text-generation-webui pull request 5677.
void apply_dry(std::span<float> logits, std::span<const TokenId> tokens, const DryOptions& options,
               DryScratch& scratch);

}  // namespace genai::sampling
