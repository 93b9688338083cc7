#include "genai/sampling/top_p.h"

#include "genai/sampling/kernels.h"
#include "genai/sampling/select_by_weight.h"

namespace genai::sampling {

void apply_top_p(Candidates& candidates, float p) {
  if (p >= 1.0F) return;
  candidates.keys.clear();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    candidates.keys.push_back(rank_key(candidates.logits[i], candidates.ids[i]));
  }
  const double target = static_cast<double>(p) * total_weight(candidates) * (1.0 - kProbabilitySlack);
  const std::uint64_t border = select_by_weight(candidates.keys, target, [](std::uint64_t key) {
    return static_cast<double>(exp_of(logit_of_key(key)));
  });
  keep_if(candidates,
          [&](std::size_t i) { return rank_key(candidates.logits[i], candidates.ids[i]) <= border; });
}

}  // namespace genai::sampling
