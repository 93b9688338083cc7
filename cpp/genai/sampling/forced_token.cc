#include "genai/sampling/forced_token.h"

#include "genai/base/error.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace genai::sampling {

void force_token(std::span<float> logits, TokenId token) {
  check(token >= 0 && static_cast<std::size_t>(token) < logits.size(), "a forced token is not in the row");
  std::ranges::fill(logits, -std::numeric_limits<float>::infinity());
  logits[static_cast<std::size_t>(token)] = 0.0F;
}

}  // namespace genai::sampling
