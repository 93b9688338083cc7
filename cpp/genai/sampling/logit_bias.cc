#include "genai/sampling/logit_bias.h"

#include <cstddef>

namespace genai::sampling {

void apply_logit_bias(std::span<float> logits, std::span<const std::pair<TokenId, float>> biases) {
  for (const auto& [token, bias] : biases) {
    if (token >= 0 && static_cast<std::size_t>(token) < logits.size()) {
      logits[static_cast<std::size_t>(token)] += bias;
    }
  }
}

}  // namespace genai::sampling
