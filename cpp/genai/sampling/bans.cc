#include "genai/sampling/bans.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "genai/base/error.h"

namespace genai::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

}  // namespace

void ban_tokens(std::span<float> logits, std::span<const TokenId> banned) {
  for (const TokenId token : banned) {
    if (token >= 0 && static_cast<std::size_t>(token) < logits.size()) {
      logits[static_cast<std::size_t>(token)] = kForbidden;
    }
  }
}

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

void force_token(std::span<float> logits, TokenId token) {
  check(token >= 0 && static_cast<std::size_t>(token) < logits.size(), "a forced token is not in the row");
  std::ranges::fill(logits, kForbidden);
  logits[static_cast<std::size_t>(token)] = 0.0F;
}

}  // namespace genai::sampling
