#pragma once

#include "genai/sampling/candidates.h"

namespace genai::sampling {

/// Keeps tokens whose probability is at least min_p times the largest one. min_p: in [0, 1]; 0 keeps all.
/// Cost: O(size). Source: Nguyen et al. 2024, "Min P sampling"; transformers' MinPLogitsWarper.
void apply_min_p(Candidates& candidates, float min_p);

}  // namespace genai::sampling
