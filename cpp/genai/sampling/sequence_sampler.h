#pragma once

#include "genai/base/ids.h"
#include "genai/core/sampling_params.h"
#include "genai/sampling/kernels.h"       // IWYU pragma: export (RowScan, scan_row)
#include "genai/sampling/row_logprobs.h"  // IWYU pragma: export
#include "genai/sampling/validate.h"      // IWYU pragma: export

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace genai::sampling {

/// What a row's processors may see. Views are loans that end with the call.
struct RowContext {
  std::span<const TokenId> tokens;  ///< prompt, then generated ids
  std::size_t num_prompt_tokens = 0;
  std::span<const TokenId> prompt() const { return tokens.first(num_prompt_tokens); }
  std::span<const TokenId> generated() const { return tokens.subspan(num_prompt_tokens); }
};

/// Samples one sequence: the chain of logits processors in the order of `docs/sampling.md`, then the choice. Holds the
/// sequence's own state (token counts, mirostat's mu) and scratch buffers, which grow to what its rows need: vocab / 64
/// floats, and candidates, which are few unless a filter needs the whole row. One thread.
///
/// Per step either `sample()`, or, with user hooks: process() -> hooks -> sample(), or
/// process() -> hooks -> filter() -> SamplerHook -> commit().
///
/// Rows may be wider than `vocab_size` (a vocabulary padded beyond the tokenizer); ids from there on are never taken.
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

  /// Stage 1, before temperature: logit bias, penalties, bans, forced ids. logits: float32 [vocab], changed in place.
  /// The sequence may have been rewound since the last call.
  void process(std::span<float> logits, const RowContext& context);

  /// Stage 2: temperature, filters and the draw; greedy is the argmax. The row is left as it is. NaN never wins. Throws
  /// kInternal only; a row with every token forbidden throws kInvalidArgument naming the processors that are on.
  TokenId sample(std::span<const float> logits, const RowContext& context);

  /// Stage 2 without the draw: temperature and filters; what is filtered becomes -inf. Greedy leaves the row as it is.
  /// logits: float32 [vocab], changed in place. Throws as sample() does.
  void filter(std::span<float> logits, const RowContext& context);

  /// Tells the sampler which id was taken after filter(), so that its state (mirostat) follows. An id that was filtered
  /// out leaves the state as it is.
  void commit(TokenId token, std::span<const float> filtered_logits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace genai::sampling
