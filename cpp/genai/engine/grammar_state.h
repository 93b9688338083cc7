#pragma once

#include "genai/base/ids.h"
#include "genai/core/constraint.h"
#include "genai/core/request.h"
#include "genai/engine/bitmask_worker.h"
#include "genai/engine/sequence_output.h"
#include "genai/grammar/closing.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace genai::engine {

/// Where one choice stands in the grammar of its request, and the tokens that it may take next. One thread, but for
/// the job, which a BitmaskWorker may run.
class GrammarState {
 public:
  /// What all choices of an engine share; both loans last as long as the states.
  struct Facts {
    std::int64_t num_tokens = 0;  ///< those of the tokenizer, which the bitmask covers
    const grammar::Closing* closing = nullptr;
    std::span<const TokenId> eos_ids = {};
  };

  GrammarState(const TokenGrammar& grammar, const Facts& facts);

  /// The work of computing the next bitmask.
  BitmaskJob job() { return {.matcher = matcher_.get(), .bitmask = bitmask_, .error = std::nullopt}; }
  /// Takes the outcome of the job.
  void take(BitmaskJob& job) { error_ = std::move(job.error); }

  std::span<const std::uint32_t> bitmask() const { return bitmask_; }
  /// Why there is no bitmask.
  const std::optional<Error>& error() const { return error_; }

  /// The token to take instead of a sampled one, behind which there is room for `room` tokens: the same, unless there
  /// is room for little more than an end of the grammar, and none is found behind the token. Then the first token of
  /// the end that is known, and what ends the answer from there on does so with kLength. Requires: the job was taken;
  /// advance() follows.
  TokenId settle(TokenId token, std::int64_t room);

  /// Goes on by a sampled token, whose event this is. When nothing may follow, the event ends the choice with kStop,
  /// even if the token was the last one that there was room for. What must follow is appended to `output` and `event`
  /// at once and returned: at most `room` tokens. Throws kInvalidArgument when the last bitmask does not allow the
  /// token. Requires: the job was taken.
  std::vector<TokenId> advance(TokenId token, std::int64_t room, SequenceOutput& output, Event& event);

 private:
  bool allows(TokenId token) const;
  bool must_end_soon(std::int64_t room);
  bool can_end_behind(std::span<const TokenId> tokens, std::int64_t room);
  std::vector<TokenId> forced(std::int64_t room);
  void finish(SequenceOutput& output, Event& event) const;

  Facts facts_;
  std::unique_ptr<TokenMatcher> matcher_;
  std::vector<std::uint32_t> bitmask_;
  std::optional<Error> error_;
  std::optional<std::vector<TokenId>> end_;  ///< where known, tokens that end the grammar and for which there is room
  std::int64_t look_room_;                   ///< up to this room an end is looked for
  std::int64_t num_vain_looks_ = 0;          ///< in a row, for an end
  bool looked_at_last_ = false;              ///< for an end in the last tokens of the room
  bool steered_ = false;                     ///< a token was taken in place of a sampled one
};

}  // namespace genai::engine
