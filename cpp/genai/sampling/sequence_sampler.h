#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "genai/base/ids.h"
#include "genai/core/request.h"
#include "genai/core/sampling_params.h"

namespace genai::sampling {

/// What one scan over a row of logits tells. Cost: one pass, SIMD.
struct RowScan {
  TokenId argmax = 0;      ///< lowest id among the largest values; NaN never wins
  float max = 0.0F;
  float min = 0.0F;        ///< over the values that are not -inf; +inf when there are none
  bool has_nan = false;
  bool has_pos_inf = false;
};
RowScan scan_row(std::span<const float> logits);

/// Throws InvalidArgument (parameter, value, limit) when `params` do not fit a vocabulary: ids out of range, every token
/// forbidden, NaN, ranges of `onnx_genai.SamplingParams`. top_k above the vocabulary is not an error.
void validate(const SamplingParams& params, std::int64_t vocab_size);

/// What a row's processors may see. Views are loans that end with the call.
struct RowContext {
  std::span<const TokenId> tokens;  ///< prompt, then generated ids
  std::size_t num_prompt_tokens = 0;
  std::span<const TokenId> prompt() const { return tokens.first(num_prompt_tokens); }
  std::span<const TokenId> generated() const { return tokens.subspan(num_prompt_tokens); }
};

/// Samples one sequence: the chain of logits processors in the order of `docs/sampling.md`, then the choice. Holds the
/// sequence's own state (mirostat's mu) and scratch buffers. One thread.
///
/// Per step either `sample()`, or, with user hooks: process() -> hooks -> sample(), or
/// process() -> hooks -> filter() -> SamplerHook -> commit().
class SequenceSampler {
 public:
  /// Requires: validate(params, vocab_size) passed. `eos_ids` are forbidden before min_new_tokens (unless empty).
  /// Random numbers are a pure function of (seed, choice, output position).
  SequenceSampler(const SamplingParams& params, std::span<const TokenId> eos_ids, std::int64_t vocab_size,
                  std::uint64_t seed, int choice);
  ~SequenceSampler();
  SequenceSampler(SequenceSampler&&) noexcept;
  SequenceSampler& operator=(SequenceSampler&&) noexcept;

  /// True if process() may change the logits at this position; false lets the caller skip copies.
  bool has_processors() const;

  /// Stage 1, before temperature: logit bias, bans, penalties, forced ids. logits: float32 [vocab], changed in place.
  void process(std::span<float> logits, const RowContext& context);

  /// Stage 2: temperature, filters and the draw; greedy is the argmax. logits: changed in place. Throws kInternal only;
  /// a row with every token forbidden throws kInvalidArgument naming the processors that are on.
  TokenId sample(std::span<float> logits, const RowContext& context);

  /// Stage 2 without the draw: temperature and filters; what is filtered becomes -inf.
  void filter(std::span<float> logits, const RowContext& context);

  /// Tells the sampler which id was taken after filter(), so that its state (mirostat) follows.
  void commit(TokenId token, std::span<const float> filtered_logits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Log-probabilities of a row of raw logits. Keeps what is needed to score any id of the row later, without a copy of it.
/// Cost: O(vocab) once, plus O(vocab log top_n) for the top list.
class RowLogprobs {
 public:
  RowLogprobs(std::span<const float> raw_logits, int top_n);
  /// Requires: `raw_logit` is the raw logit of `token` in the same row.
  TokenLogprob score(TokenId token, float raw_logit) const;

 private:
  float log_sum_exp_ = 0.0F;
  std::vector<TopLogprob> top_;
};

}  // namespace genai::sampling
