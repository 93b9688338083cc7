#pragma once

#include "genai/sampling/candidates.h"

namespace genai::sampling {

/// Keeps the smallest set of most likely tokens whose probability sum reaches `p`. p: in (0, 1]; 1 keeps all.
/// Ties at the border keep the lower ids. The unlisted tail counts in the sum of all. Cost: O(size) on average.
/// Source: Holtzman et al. 2020, section 3.1.
void apply_top_p(Candidates& candidates, float p);

}  // namespace genai::sampling
