#include "genai/sampling/bad_words.h"

#include "genai/sampling/ban_tokens.h"

#include <algorithm>

namespace genai::sampling {

void ban_bad_words(std::span<float> logits, std::span<const TokenId> tokens,
                   std::span<const std::vector<TokenId>> words) {
  for (const std::vector<TokenId>& word : words) {
    if (word.empty() || word.size() - 1 > tokens.size()) continue;
    const std::span<const TokenId> prefix = std::span(word).first(word.size() - 1);
    if (std::ranges::equal(prefix, tokens.last(prefix.size()))) {
      ban_tokens(logits, std::span(word).last(1));
    }
  }
}

}  // namespace genai::sampling
