#pragma once

#include "genai/base/ids.h"
#include "genai/core/request.h"
#include "genai/core/token_table.h"
#include "genai/sampling/detokenizer.h"
#include "genai/sampling/stop_checker.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace genai::engine {

/// Turns the sampled ids of one sequence into events: text, stop ids, stop strings. One thread.
class SequenceOutput {
 public:
  /// `eos_ids` end the sequence unless params.ignore_eos.
  SequenceOutput(int choice, const SamplingParams& params, std::span<const TokenId> eos_ids,
                 std::shared_ptr<const TokenTable> table);

  /// Takes one token. The event's `finish` is set when this token ends the sequence (kStop), or when `is_last` says
  /// that no further token may follow (kLength). EOS and stop ids are part of `tokens` but not of the text.
  Event append(TokenId token, std::optional<TokenLogprob> logprob, bool is_last);

  /// Ends the sequence with the last appended token, whose event this is, as if the model had stopped there. Does
  /// nothing when the event ends it already.
  void stop_here(Event& event);

  /// Ends the sequence without a token (abort, error); held-back text is released.
  Event end(FinishReason reason);

  int choice() const { return choice_; }
  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  void finish_text(Event& event);

  int choice_;
  std::vector<TokenId> eos_ids_;
  std::vector<TokenId> stop_token_ids_;
  sampling::Detokenizer detokenizer_;
  sampling::StopChecker stop_checker_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace genai::engine
