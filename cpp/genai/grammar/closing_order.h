#pragma once

#include "genai/base/ids.h"
#include "genai/core/token_table.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace genai::grammar {

/// Which of the allowed tokens most likely leads to an end soon: what closes, then short values, then the rest. Made
/// once for a vocabulary; const methods are safe from any thread.
class ClosingOrder {
 public:
  /// num_usable: ids from there on are never taken, as the model does not know them. Cost: O(n log n) in the number of
  /// tokens, some 10 ms for large vocabularies.
  ClosingOrder(const TokenTable& table, std::int64_t num_usable);

  std::size_t num_tokens() const { return in_text_.place.size(); }
  /// The best token of a bitmask (core/constraint.h); none of an empty one. `tried` are those that were taken at places
  /// with the same bitmask: letters and signs among them are avoided, as they may lead around in a circle.
  std::optional<TokenId> best(std::span<const std::uint32_t> bitmask, std::span<const TokenId> tried) const;
  /// Others that are worth a try instead of `taken`, best first: at most `max_count`, and few that are much the same.
  std::vector<TokenId> others(std::span<const std::uint32_t> bitmask, TokenId taken, std::size_t max_count) const;

 private:
  struct Order {
    std::vector<TokenId> tokens;       ///< all, best first
    std::vector<std::uint32_t> place;  ///< of each token in `tokens`
    std::uint32_t first_varied = 0;    ///< place of the first token that is not taken twice where things look the same
    std::uint32_t first_useless = 0;   ///< place of the first token that is never worth a try
  };

  const Order& order_for(std::span<const std::uint32_t> bitmask) const;

  std::int64_t num_usable_;
  Order in_structure_;
  Order in_words_;                 ///< where any letter may come, but not any sign
  Order in_text_;                  ///< where anything may come: inside of strings, and outside of everything
  std::optional<TokenId> letter_;  ///< a letter and a sign that tell these apart
  std::optional<TokenId> sign_;
  std::vector<std::uint8_t> roles_;  ///< of each token: what it does to a text
  std::vector<TokenId> marks_;       ///< special tokens and what looks like an end tag, likely ends first
  std::vector<TokenId> signs_;       ///< single signs, a space, two letters and what closes something, best first
};

}  // namespace genai::grammar
