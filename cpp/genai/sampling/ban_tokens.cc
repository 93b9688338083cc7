#include "genai/sampling/ban_tokens.h"

#include <cstddef>
#include <limits>

namespace genai::sampling {

void ban_tokens(std::span<float> logits, std::span<const TokenId> banned) {
  for (const TokenId token : banned) {
    if (token >= 0 && static_cast<std::size_t>(token) < logits.size()) {
      logits[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace genai::sampling
