#include "genai/sampling/repetition_penalty.h"

#include <cstddef>

namespace genai::sampling {

void apply_repetition_penalty(std::span<float> logits, const TokenCounts& counts, float penalty) {
  if (penalty == 1.0F) return;
  for (const TokenCounts::Entry& entry : counts.entries()) {
    if (entry.total == 0 || entry.token < 0 || static_cast<std::size_t>(entry.token) >= logits.size()) continue;
    float& logit = logits[static_cast<std::size_t>(entry.token)];
    logit = logit > 0.0F ? logit / penalty : logit * penalty;
  }
}

}  // namespace genai::sampling
