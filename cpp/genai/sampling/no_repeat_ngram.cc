#include "genai/sampling/no_repeat_ngram.h"

#include <algorithm>
#include <limits>

namespace genai::sampling {

void ban_repeated_ngrams(std::span<float> logits, std::span<const TokenId> tokens, std::size_t size) {
  if (size == 0 || tokens.size() < size) return;
  const std::span<const TokenId> prefix = tokens.last(size - 1);
  for (std::size_t end = size - 1; end < tokens.size(); ++end) {
    // The last token first: it differs nearly always.
    if (size > 1 && tokens[end - 1] != prefix.back()) continue;
    if (!std::ranges::equal(tokens.subspan(end + 1 - size, size - 1), prefix)) continue;
    const TokenId banned = tokens[end];
    if (banned >= 0 && static_cast<std::size_t>(banned) < logits.size()) {
      logits[static_cast<std::size_t>(banned)] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace genai::sampling
