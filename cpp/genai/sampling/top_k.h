#pragma once

#include "genai/sampling/candidates.h"

#include <cstddef>

namespace genai::sampling {

/// Keeps the k largest logits and all that equal the k-th. k: 0 or >= size keeps all.
/// Cost: O(size). Source: transformers' TopKLogitsWarper.
void apply_top_k(Candidates& candidates, std::size_t k);

}  // namespace genai::sampling
