#include "genai/sampling/token_counts.h"

#include <algorithm>

namespace genai::sampling {
namespace {

constexpr std::size_t kFirstSlots = 64;

/// Spreads neighbouring ids (Fibonacci hashing).
std::size_t hash_of(TokenId token) {
  return static_cast<std::size_t>((static_cast<std::uint32_t>(token) * 0x9E3779B97F4A7C15ULL) >> 32U);
}

std::size_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  // Nearly always `b` only grew, and equal() is much faster than mismatch().
  if (a.size() <= b.size() && std::ranges::equal(a, b.first(a.size()))) return a.size();
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

void TokenCounts::update(std::span<const TokenId> tokens, std::size_t num_prompt_tokens) {
  const std::size_t same = common_prefix(tokens_, tokens);
  for (std::size_t i = same; i < tokens_.size(); ++i) {
    Entry& entry = entry_of(tokens_[i]);
    --entry.total;
    if (i >= num_prompt_tokens) --entry.generated;
  }
  tokens_.resize(same);
  for (std::size_t i = same; i < tokens.size(); ++i) {
    Entry& entry = entry_of(tokens[i]);
    ++entry.total;
    if (i >= num_prompt_tokens) ++entry.generated;
    tokens_.push_back(tokens[i]);
  }
}

TokenCounts::Entry& TokenCounts::entry_of(TokenId token) {
  if (2 * (entries_.size() + 1) > slots_.size()) grow();
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_of(token) & mask;
  while (slots_[slot] != 0) {
    Entry& entry = entries_[slots_[slot] - 1];
    if (entry.token == token) return entry;
    slot = (slot + 1) & mask;
  }
  entries_.push_back({.token = token});
  slots_[slot] = static_cast<std::uint32_t>(entries_.size());
  return entries_.back();
}

void TokenCounts::grow() {
  slots_.assign(std::max(kFirstSlots, 2 * slots_.size()), 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t slot = hash_of(entries_[i].token) & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

}  // namespace genai::sampling
