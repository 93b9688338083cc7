#include "genai/sampling/dry.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace genai::sampling {
namespace {

/// lengths[i] = number of last tokens that also stand just before position n - i, by the Z algorithm on the reversed
/// sequence: r[0..k) == r[i..i + k) with r[j] = tokens[n - 1 - j]. lengths[0] is unused. Cost: O(n).
void match_suffix(std::span<const TokenId> tokens, std::vector<std::size_t>& lengths) {
  const std::size_t n = tokens.size();
  const auto reversed = [&](std::size_t j) { return tokens[n - 1 - j]; };
  lengths.assign(n, 0);
  std::size_t left = 0;  // [left, right) is the known match that reaches furthest
  std::size_t right = 0;
  for (std::size_t i = 1; i < n; ++i) {
    std::size_t length = i < right ? std::min(right - i, lengths[i - left]) : 0;
    while (i + length < n && reversed(length) == reversed(i + length)) ++length;
    lengths[i] = length;
    if (i + length > right) {
      left = i;
      right = i + length;
    }
  }
}

/// Tokens after the last breaker: no match is longer.
std::size_t max_match(std::span<const TokenId> tokens, std::span<const TokenId> breakers) {
  std::size_t length = 0;
  while (length < tokens.size() && std::ranges::find(breakers, tokens[tokens.size() - 1 - length]) == breakers.end()) {
    ++length;
  }
  return length;
}

}  // namespace

void apply_dry(std::span<float> logits, std::span<const TokenId> tokens, const DryOptions& options,
               DryScratch& scratch) {
  if (options.multiplier == 0.0F) return;
  const std::size_t longest = max_match(tokens, options.sequence_breakers);
  if (longest < options.allowed_length) return;

  match_suffix(tokens, scratch.match_lengths);
  scratch.followers.clear();
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const std::size_t length = std::min(scratch.match_lengths[i], longest);
    const TokenId follower = tokens[tokens.size() - i];
    if (length < options.allowed_length || follower < 0) continue;
    if (static_cast<std::size_t>(follower) < logits.size()) scratch.followers.emplace_back(follower, length);
  }
  std::ranges::sort(scratch.followers);

  for (std::size_t i = 0; i < scratch.followers.size(); ++i) {
    const auto [follower, length] = scratch.followers[i];
    const bool has_longer = i + 1 < scratch.followers.size() && scratch.followers[i + 1].first == follower;
    float& logit = logits[static_cast<std::size_t>(follower)];
    if (has_longer || !std::isfinite(logit)) continue;
    const double penalty =
        static_cast<double>(options.multiplier) *
        std::pow(static_cast<double>(options.base), static_cast<double>(length - options.allowed_length));
    const double lowest = static_cast<double>(std::numeric_limits<float>::lowest());
    logit = static_cast<float>(std::max(lowest, static_cast<double>(logit) - penalty));
  }
}

}  // namespace genai::sampling
