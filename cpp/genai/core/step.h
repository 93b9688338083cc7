#pragma once

#include "genai/base/ids.h"
#include "genai/core/adapter.h"
#include "genai/core/encoder_inputs.h"
#include "genai/core/kv.h"

#include <cstdint>
#include <span>
#include <vector>

namespace genai {

/// One sequence's share of a step.
///
///     tokens:  [0 ........ num_computed_tokens ........ num_computed_tokens + num_scheduled_tokens ... size)
///               KV written                     run now                                      later steps
struct ScheduledSequence {
  SequenceId id;
  std::span<const TokenId> tokens;  ///< all known ids (prompt and generated); a loan until the plan is updated
  std::int64_t num_computed_tokens = 0;
  std::int64_t num_scheduled_tokens = 0;  ///< >= 1
  std::int64_t num_prompt_tokens = 0;     ///< of `tokens`: the rest was generated, also when it is computed again
  bool needs_logits = false;              ///< the last scheduled token is the last known one: a token is sampled
  /// Blocks of positions [0, num_computed_tokens + num_scheduled_tokens) at least; a loan like `tokens`. Counts only,
  /// without meaning, for decoders with contiguous KV.
  std::span<const BlockId> block_table = {};
  const EncoderInputs* encoder_inputs = nullptr;  ///< of an encoder-decoder: its source; a loan like `tokens`
  std::span<const AdapterSpan> adapters = {};     ///< of the request; a loan like `tokens`
};

/// What to run in one step: schedule() makes it, the runner executes it, update() closes it.
struct StepPlan {
  std::vector<ScheduledSequence> sequences;
  std::int64_t num_tokens() const {
    std::int64_t sum = 0;
    for (const ScheduledSequence& s : sequences) sum += s.num_scheduled_tokens;
    return sum;
  }
};

/// Logits of the rows that asked for them, in plan order.
struct StepLogits {
  std::span<float> values;  ///< float32 [num_rows, vocab_size], writable, a loan until the runner's next call
  std::int64_t vocab_size = 0;
  std::int64_t num_rows = 0;
  std::span<float> row(std::int64_t index) const {
    return values.subspan(static_cast<std::size_t>(index * vocab_size), static_cast<std::size_t>(vocab_size));
  }
};

}  // namespace genai
