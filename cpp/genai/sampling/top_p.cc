#include "genai/sampling/top_p.h"

#include "genai/sampling/weighted_border.h"

#include <cstddef>
#include <cstdint>

namespace genai::sampling {

void apply_top_p(Candidates& candidates, float p) {
  if (p >= 1.0F) return;
  const double target = static_cast<double>(p) * total_weight(candidates) * (1.0 - kProbabilitySlack);
  const float largest = candidates.logits[most_likely(candidates)];
  const auto depth = [&](std::size_t i) { return largest - candidates.logits[i]; };
  const auto weight = [&](std::size_t i) { return candidates.weights[i]; };
  const std::uint64_t border = find_weighted_border(candidates.size(), target, depth, weight, candidates.keys);
  keep_if(candidates, [&](std::size_t i) { return order_key(depth(i), i) <= border; });
}

}  // namespace genai::sampling
