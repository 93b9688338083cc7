#include "genai/sampling/min_p.h"

namespace genai::sampling {

void apply_min_p(Candidates& candidates, float min_p) {
  if (min_p <= 0.0F) return;
  const auto largest = static_cast<double>(candidates.weights[most_likely(candidates)]);
  const double smallest = static_cast<double>(min_p) * largest * (1.0 - kProbabilitySlack);
  keep_if(candidates, [&](std::size_t i) { return static_cast<double>(candidates.weights[i]) >= smallest; });
}

}  // namespace genai::sampling
