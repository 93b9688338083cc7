#pragma once

#include "genai/sampling/candidates.h"

namespace genai::sampling {

/// "Exclude top choices": removes all tokens with probability >= threshold but the least likely of them (ties: the
/// highest id stays). Fewer than two such tokens change nothing. threshold: in (0, 0.5]. Whether it acts at all at a
/// step is the caller's draw. Requires: no tail. Cost: O(size).
/// Source: P. E. Weidmann, "Exclude Top Choices", text-generation-webui pull request 6335.
void apply_xtc(Candidates& candidates, float threshold);

}  // namespace genai::sampling
