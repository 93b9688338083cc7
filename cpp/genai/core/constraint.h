#pragma once

#include "genai/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace genai {

/// Words of a bitmask over `vocab_size` tokens: bit i % 32 of word i / 32 is 1 when token i is allowed.
inline std::size_t bitmask_words(std::int64_t vocab_size) {
  return static_cast<std::size_t>((vocab_size + 31) / 32);
}

/// Where one sequence stands in a grammar. One thread at a time.
class TokenMatcher {
 public:
  virtual ~TokenMatcher() = default;

  /// Fills the bitmask of the tokens that may come next; end tokens are among them only where the grammar may end.
  /// Requires: bitmask_words() of the tokenizer's vocabulary. Throws kInvalidArgument when the grammar has become too
  /// complex. Up to some milliseconds.
  virtual void fill_bitmask(std::span<std::uint32_t> bitmask) = 0;
  /// Goes on by tokens that the grammar allows, in order. Throws kInvalidArgument when it has become too complex, or
  /// does not allow one.
  virtual void accept(std::span<const TokenId> tokens) = 0;
  /// A matcher at the same place, which goes on by itself. Cheap.
  virtual std::unique_ptr<TokenMatcher> clone() const = 0;
  /// Takes the last `count` accepted tokens back.
  virtual void rollback(std::int64_t count) = 0;
  /// Tokens that must come next, as the tokenizer itself would write them; may be empty although one is forced.
  virtual std::vector<TokenId> forced_tokens() = 0;
  /// The grammar is satisfied and may end here.
  virtual bool can_end() = 0;
  /// Nothing but an end may follow.
  virtual bool must_end() = 0;
};

/// A compiled grammar; shared by the requests that carry it. Thread-safe.
class TokenGrammar {
 public:
  virtual ~TokenGrammar() = default;
  /// A matcher at the beginning. Cheap.
  virtual std::unique_ptr<TokenMatcher> make_matcher() const = 0;
};

}  // namespace genai
