#include "genai/sampling/typical_p.h"

#include "genai/base/error.h"
#include "genai/sampling/weighted_border.h"

#include <cmath>
#include <cstddef>

namespace genai::sampling {

void apply_typical_p(Candidates& candidates, float p) {
  if (p >= 1.0F) return;
  check(candidates.tail_weight == 0.0, "typical sampling needs all candidates");
  const double total = total_weight(candidates);
  double mean_logit = 0.0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates.weights[i] <= 0.0F) continue;  // 0 * -inf
    mean_logit += static_cast<double>(candidates.weights[i]) * static_cast<double>(candidates.logits[i]);
  }
  mean_logit /= total;

  // -ln p - entropy = (ln W - logit) - (ln W - mean logit). Rounding to float32 makes equal what should be.
  const auto distance = [&](std::size_t i) {
    return static_cast<float>(std::abs(mean_logit - static_cast<double>(candidates.logits[i])));
  };
  const auto weight = [&](std::size_t i) { return candidates.weights[i]; };
  const double target = static_cast<double>(p) * total * (1.0 - kProbabilitySlack);
  const float furthest =
      value_of_order_key(find_weighted_border(candidates.size(), target, distance, weight, candidates.keys));
  keep_if(candidates, [&](std::size_t i) { return distance(i) <= furthest; });
}

}  // namespace genai::sampling
