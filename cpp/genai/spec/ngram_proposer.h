#pragma once

#include "genai/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace genai::spec {

/// How a draft goes on after its first token.
enum class DraftStyle {
  /// Copies what followed the last place with the same context, up to the end of the tokens.
  kCopied,
  /// Looks each further token up again, the draft so far included: the draft may be longer than what is there to copy,
  /// and goes on as the latest place of each context did.
  kChained,
};

/// Drafts tokens out of a sequence's own past: if its last `order - 1` tokens stand earlier in it, what followed the
/// latest such place is the guess. No model runs. The class of one sequence; one thread.
///
///   NgramProposer proposer(3);
///   proposer.extend(std::vector<TokenId>{1, 2, 3, 1, 2});
///   proposer.propose(3, DraftStyle::kCopied);  // 3, 1, 2
///
/// Memory: 8 bytes and one entry of a hash table for each token and each different context.
class NgramProposer {
 public:
  /// order: tokens of an n-gram: the context and the token that follows it; at least 2.
  /// Throws Error(kInvalidArgument) for a smaller one.
  explicit NgramProposer(std::size_t order);

  /// Adds tokens to the sequence: the prompt, then what was accepted. Cost: O(order) a token.
  void extend(std::span<const TokenId> tokens);
  /// Keeps the first `size` tokens. Requires: size <= size(). Cost: O(order) a dropped token.
  void truncate(std::size_t size);
  /// Tokens of the sequence.
  std::size_t size() const { return tokens_.size(); }

  /// At most `limit` tokens that may come next; none if the context is new. Cost: O(order) a token.
  std::vector<TokenId> propose(std::size_t limit, DraftStyle style) const;

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::uint64_t hash_before(std::size_t position) const;
  /// The last position whose token follows `context` in the sequence; kNone if there is none.
  std::size_t find(std::span<const TokenId> context) const;

  std::size_t context_size_;
  std::vector<TokenId> tokens_;
  /// For each position the one before it whose context has the same hash; kNone if there is none.
  std::vector<std::size_t> earlier_;
  /// Hash of a context to the last position that follows it.
  std::unordered_map<std::uint64_t, std::size_t> last_;
};

}  // namespace genai::spec
