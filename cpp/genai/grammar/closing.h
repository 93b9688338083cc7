#pragma once

#include "genai/base/ids.h"
#include "genai/core/constraint.h"
#include "genai/core/token_table.h"
#include "genai/grammar/closing_order.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace genai::grammar {

/// Finds short ways to end what was begun under a grammar, so that an answer whose room is used up is no half text.
///
/// A walk goes on by what the grammar forces, else by the best token of a ClosingOrder. When it is longer than asked
/// for, others are tried that part from it, the earliest places first. So what is found is mostly one of the shortest
/// ways where that matters; that none is found proves nothing. Const methods are safe from any thread.
class Closing {
 public:
  /// See ClosingOrder.
  Closing(const TokenTable& table, std::int64_t num_usable) : order_(table, num_usable) {}

  /// What is looked for, and how much that may cost.
  struct Wish {
    std::int64_t max_tokens = 0;      ///< a longer way is none
    std::int64_t good_tokens = 0;     ///< a way of up to so many is as good as a shorter one
    std::int64_t effort = kThorough;  ///< tokens of all walks but the first one
  };
  static constexpr std::int64_t kThorough = 576;

  /// Tokens after which the grammar may end: none where it may end already, nullopt when no such way is found. The
  /// matcher stays where it is. Costs some 15 to 25 us a token that is walked: the tokens of the first walk, which is
  /// all where it ends well, and about `effort` more. Requires: a matcher over the tokens of the table.
  std::optional<std::vector<TokenId>> find_end(const TokenMatcher& matcher, const Wish& wish) const;

 private:
  ClosingOrder order_;
};

/// Whether the grammar allows the tokens, in order, and may end behind them. The matcher stays where it is.
bool ends_after(const TokenMatcher& matcher, std::span<const TokenId> tokens);

}  // namespace genai::grammar
