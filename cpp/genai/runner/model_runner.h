#pragma once

#include "genai/base/ids.h"
#include "genai/core/step.h"

#include <cstdint>
#include <string>

namespace genai::runner {

/// Facts about a loaded decoder.
struct RunnerInfo {
  std::string decoder;             ///< "slot", "copy", "paged": which decoder this is, for `show` and metrics
  std::string execution_provider;  ///< effective provider, e.g. "cpu"
  std::int64_t vocab_size = 0;     ///< width of a logits row
  std::int64_t context_limit = 0;  ///< tokens a sequence may have by the graph itself; 0 = no limit known
  std::int64_t kv_bytes_per_token = 0;
  bool can_chunk_prefill = true;  ///< false: the scheduler must give a whole prompt in one step
  int intra_op_threads = 0;
};

/// Running figures of a decoder.
struct RunnerStats {
  std::int64_t kv_bytes = 0;  ///< now held for KV
  std::int64_t num_runs = 0;  ///< calls of ONNX Runtime's Run
  double run_seconds = 0.0;   ///< inside Run; all other time of execute() is our own
};

/// Runs step plans on a model and owns the KV of the sequences. Knows no sampling. One thread.
///
/// A sequence exists from its first plan until release(). Its first plan has num_computed_tokens == 0 unless it was
/// made by fork().
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual const RunnerInfo& info() const = 0;

  /// Writes the KV of all scheduled tokens and returns one logits row for each sequence with needs_logits, in plan
  /// order. On an error nothing is lost: KV up to each num_computed_tokens is intact, so the same plan, or a part of
  /// it, may be executed again. Throws kBackend (ORT), kResourceExhausted (memory).
  virtual StepLogits execute(const StepPlan& plan) = 0;

  /// Makes `child` a copy of the first `num_tokens` positions of `parent`. Cost: O(num_tokens).
  virtual void fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) = 0;

  /// Forgets the sequence and frees or reuses its memory; unknown ids are ignored.
  virtual void release(SequenceId id) = 0;

  virtual RunnerStats stats() const = 0;

  /// Makes a running execute() fail soon with kAborted. The only method that other threads may call.
  virtual void interrupt() = 0;
};

}  // namespace genai::runner
