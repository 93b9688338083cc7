#include "genai/sampling/typical_p.h"

#include <cmath>

#include "genai/base/error.h"
#include "genai/sampling/select_by_weight.h"

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
  candidates.keys.clear();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    candidates.keys.push_back((static_cast<std::uint64_t>(ordered_bits(distance(i))) << 32U) | i);
  }
  const double target = static_cast<double>(p) * total * (1.0 - kProbabilitySlack);
  const std::uint64_t border = select_by_weight(candidates.keys, target, [&](std::uint64_t key) {
    return static_cast<double>(candidates.weights[key & 0xFFFFFFFFU]);
  });
  const std::uint64_t last_distance = border >> 32U;
  keep_if(candidates, [&](std::size_t i) { return ordered_bits(distance(i)) <= last_distance; });
}

}  // namespace genai::sampling
