#include "genai/sampling/top_a.h"

namespace genai::sampling {

void apply_top_a(Candidates& candidates, float a) {
  if (a <= 0.0F) return;
  const auto largest = static_cast<double>(candidates.weights[most_likely(candidates)]);
  // w / W >= a * (w_max / W)^2, multiplied by W.
  const double smallest =
      static_cast<double>(a) * largest * largest / total_weight(candidates) * (1.0 - kProbabilitySlack);
  keep_if(candidates, [&](std::size_t i) { return static_cast<double>(candidates.weights[i]) >= smallest; });
}

}  // namespace genai::sampling
