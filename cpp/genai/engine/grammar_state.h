#pragma once

#include "genai/base/ids.h"
#include "genai/core/constraint.h"
#include "genai/core/request.h"
#include "genai/engine/bitmask_worker.h"
#include "genai/engine/sequence_output.h"

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
  /// num_tokens: those of the tokenizer, which the bitmask covers.
  GrammarState(const TokenGrammar& grammar, std::int64_t num_tokens);

  /// The work of computing the next bitmask.
  BitmaskJob job() { return {.matcher = matcher_.get(), .bitmask = bitmask_, .error = std::nullopt}; }
  /// Takes the outcome of the job.
  void take(BitmaskJob& job) { error_ = std::move(job.error); }

  std::span<const std::uint32_t> bitmask() const { return bitmask_; }
  /// Why there is no bitmask.
  const std::optional<Error>& error() const { return error_; }

  /// Goes on by a sampled token, whose event this is. When nothing may follow, the event ends the choice with kStop,
  /// even if the token was the last one that there was room for. What must follow is appended to `output` and `event`
  /// at once and returned: at most `room` tokens. Throws kInvalidArgument when the last bitmask does not allow the
  /// token. Requires: the job was taken.
  std::vector<TokenId> advance(TokenId token, std::int64_t room, SequenceOutput& output, Event& event);

 private:
  bool allows(TokenId token) const;

  std::unique_ptr<TokenMatcher> matcher_;
  std::vector<std::uint32_t> bitmask_;
  std::optional<Error> error_;
};

}  // namespace genai::engine
