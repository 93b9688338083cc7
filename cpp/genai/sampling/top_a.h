#pragma once

#include "genai/sampling/candidates.h"

namespace genai::sampling {

/// Keeps tokens whose probability is at least a times the square of the largest one. a: in [0, 1]; 0 keeps all.
/// The unlisted tail counts in the sum of all. Cost: O(size).
/// Source: BlinkDL, RWKV-LM, "the top-a sampling method".
void apply_top_a(Candidates& candidates, float a);

}  // namespace genai::sampling
