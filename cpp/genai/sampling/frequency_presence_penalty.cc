#include "genai/sampling/frequency_presence_penalty.h"

#include <cstddef>

namespace genai::sampling {

void apply_frequency_presence_penalty(std::span<float> logits, const TokenCounts& counts, float frequency,
                                      float presence) {
  if (frequency == 0.0F && presence == 0.0F) return;
  for (const TokenCounts::Entry& entry : counts.entries()) {
    if (entry.generated == 0 || entry.token < 0 || static_cast<std::size_t>(entry.token) >= logits.size()) continue;
    logits[static_cast<std::size_t>(entry.token)] -= frequency * static_cast<float>(entry.generated) + presence;
  }
}

}  // namespace genai::sampling
