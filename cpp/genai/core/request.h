#pragma once

#include "genai/base/error.h"
#include "genai/base/ids.h"
#include "genai/core/adapter.h"
#include "genai/core/constraint.h"
#include "genai/core/encoder_inputs.h"
#include "genai/core/hooks.h"
#include "genai/core/sampling_params.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace genai {

/// What a user submits: one prompt, one set of parameters.
struct Request {
  std::vector<TokenId> prompt;  ///< not empty, ids in [0, vocab); of an encoder-decoder: what its decoder begins with
  std::shared_ptr<const EncoderInputs> encoder_inputs;  ///< of an encoder-decoder, else null; shared by its sequences
  SamplingParams params;
  std::vector<std::shared_ptr<LogitsHook>> logits_hooks;  ///< shared with other requests that carry the same object
  std::shared_ptr<SamplerHook> sampler_hook;              ///< may be null
  std::shared_ptr<const TokenGrammar> grammar;            ///< what every answer must look like; may be null
  int priority = 0;                                       ///< higher runs first; see sched::SchedulerConfig
  std::optional<double> timeout_seconds;                  ///< from submission; then kDeadlineExceeded
  std::string cache_salt;                                 ///< only requests with the same salt share cached KV
  std::vector<AdapterSpan> adapters;                      ///< in the order of `first`, each another; empty = none
};

enum class FinishReason { kStop, kLength, kAbort, kError };

/// Token counts of a request.
struct Usage {
  std::int64_t prompt_tokens = 0;      ///< of an encoder-decoder: of the source
  std::int64_t completion_tokens = 0;  ///< over all choices
  std::int64_t cached_tokens = 0;
};

/// Where the time of a request went, in seconds.
struct RequestTimes {
  double queued = 0.0;   ///< from submission to the first step that runs a token of it
  double prefill = 0.0;  ///< from there to its first new token; 0 when there was none
};

struct TopLogprob {
  TokenId token = 0;
  float logprob = 0.0F;  ///< natural log
};

/// Log-probability of one generated token and of the most likely ones at its place, best first.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0F;
  std::vector<TopLogprob> top;
};

/// Memory allowed fewer new tokens than asked.
struct BudgetCap {
  std::int64_t asked = 0;
  std::int64_t granted = 0;
};

/// A piece of output of one choice. Each choice ends with exactly one event that has `finish`, and each request with
/// exactly one that has `last`.
struct Event {
  int choice = 0;
  std::vector<TokenId> tokens;
  std::string text;  ///< valid UTF-8; the texts of a choice join to its whole text
  std::vector<TokenLogprob> logprobs;
  std::optional<FinishReason> finish;
  std::optional<int> stop_index;      ///< index in SamplingParams::stop when a stop string ended it
  std::optional<TokenId> stop_token;  ///< when an id of stop_token_ids (not EOS) ended it
  std::optional<Error> error;         ///< with finish == kError, or kAbort when the engine closed
  bool last = false;
  Usage usage;                          ///< with `last`
  std::optional<RequestTimes> times;    ///< with `last`, unless it never ran
  std::optional<BudgetCap> budget_cap;  ///< with `last`
  std::optional<double> score;          ///< with `finish`, for beam search: length-normalised sum of log-probabilities
};

}  // namespace genai
