#include "genai/sampling/top_k.h"

#include <algorithm>

namespace genai::sampling {

void apply_top_k(Candidates& candidates, std::size_t k) {
  if (k == 0 || k >= candidates.size()) return;
  candidates.keys.clear();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    candidates.keys.push_back(rank_key(candidates.logits[i], candidates.ids[i]));
  }
  const auto border = candidates.keys.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::ranges::nth_element(candidates.keys, border);
  const float smallest = logit_of_key(*border);
  keep_if(candidates, [&](std::size_t i) { return candidates.logits[i] >= smallest; });
}

}  // namespace genai::sampling
