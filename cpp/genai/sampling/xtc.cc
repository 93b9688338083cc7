#include "genai/sampling/xtc.h"

#include "genai/base/error.h"

#include <algorithm>

namespace genai::sampling {

void apply_xtc(Candidates& candidates, float threshold) {
  check(candidates.tail_weight == 0.0, "XTC needs all candidates");
  const double smallest = static_cast<double>(threshold) * total_weight(candidates) * (1.0 - kProbabilitySlack);
  const auto is_top = [&](std::size_t i) { return static_cast<double>(candidates.weights[i]) >= smallest; };
  const auto key = [&](std::size_t i) { return rank_key(candidates.logits[i], candidates.ids[i]); };
  std::uint64_t last = 0;  // key of the least likely top token
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (is_top(i)) last = std::max(last, key(i));
  }
  keep_if(candidates, [&](std::size_t i) { return !is_top(i) || key(i) == last; });
}

}  // namespace genai::sampling
