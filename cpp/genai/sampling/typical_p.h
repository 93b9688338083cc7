#pragma once

#include "genai/sampling/candidates.h"

namespace genai::sampling {

/// Keeps the tokens whose surprise -ln p is nearest to the entropy, until their probability sum reaches `p`; all that
/// are as near as the last one stay too. p: in (0, 1]; 1 keeps all. Requires: no tail. Cost: O(size) on average.
/// Source: Meister et al. 2022, "Locally typical sampling", section 3; transformers' TypicalLogitsWarper.
void apply_typical_p(Candidates& candidates, float p);

}  // namespace genai::sampling
