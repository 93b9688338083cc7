#pragma once

#include <array>
#include <cstdint>

namespace genai::engine {

/// Upper bounds, included, of the buckets of Metrics::steps_by_tokens; the last bucket has none.
inline constexpr std::array<std::int64_t, 12> kStepTokenBounds = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};

/// Totals since the engine started, and gauges. Durations are seconds of a monotonic clock. The engine's own work is
/// step_seconds + publish_seconds - run_seconds - move_seconds.
struct Metrics {
  std::int64_t num_requests = 0;           ///< submitted
  std::int64_t num_finished_requests = 0;  ///< with any reason
  std::int64_t num_failed_requests = 0;    ///< with an error, expired ones included
  std::int64_t num_aborted_requests = 0;
  std::int64_t num_expired_requests = 0;  ///< that reached their timeout
  std::int64_t num_steps = 0;
  std::int64_t num_prompt_tokens = 0;      ///< prompt tokens run; cached ones are not
  std::int64_t num_recomputed_tokens = 0;  ///< generated tokens that ran again after a preemption
  std::int64_t num_generated_tokens = 0;   ///< sampled; with beam search, rows that gave candidates
  std::int64_t num_preemptions = 0;

  std::int64_t num_step_tokens = 0;                                            ///< tokens run, of prompts and answers
  std::array<std::int64_t, kStepTokenBounds.size() + 1> steps_by_tokens = {};  ///< steps, by tokens that ran

  double step_seconds = 0.0;      ///< whole steps
  double schedule_seconds = 0.0;  ///< planning and bookkeeping of sequences and KV
  double apply_seconds = 0.0;     ///< KV operations: copies, moves between tiers
  double move_seconds = 0.0;      ///< of those, moving blocks between tiers
  double execute_seconds = 0.0;   ///< the decoder: inputs, run, logits
  double run_seconds = 0.0;       ///< of those, inside ONNX Runtime's Run
  double sample_seconds = 0.0;    ///< sampling and making events
  double publish_seconds = 0.0;   ///< handing events to readers, outside of steps

  std::int64_t num_running = 0;  ///< gauge: sequences that run
  std::int64_t num_waiting = 0;  ///< gauge: sequences that wait

  std::int64_t prefix_queried_tokens = 0;  ///< tokens of sequences that started
  std::int64_t prefix_hit_tokens = 0;      ///< of those, tokens whose KV was there
  std::int64_t kv_bytes = 0;               ///< gauge: bytes held for KV in the hot tier
  std::int64_t kv_capacity_tokens = 0;     ///< token positions that the hot tier holds
  std::int64_t kv_hot_blocks = 0;          ///< size of the tier, as the next two
  std::int64_t kv_warm_blocks = 0;
  std::int64_t kv_cold_blocks = 0;
  std::int64_t kv_hot_used_blocks = 0;    ///< gauge: held by sequences
  std::int64_t kv_hot_cached_blocks = 0;  ///< gauge: held by nobody, and can be found again
  std::int64_t kv_warm_used_blocks = 0;   ///< gauge
  std::int64_t kv_cold_used_blocks = 0;   ///< gauge
  std::int64_t kv_evicted_blocks = 0;
  std::int64_t kv_swapped_out_blocks = 0;
  std::int64_t kv_swapped_in_blocks = 0;
  std::int64_t kv_copied_blocks = 0;
  std::int64_t kv_failed_moves = 0;
  std::int64_t kv_allocated_blocks = 0;  ///< of the hot tier, given to sequences
  std::int64_t kv_freed_blocks = 0;      ///< of the hot tier, that their last holder let go of
  std::int64_t kv_failed_reserves = 0;   ///< times that no block was left
  std::int64_t kv_cold_writes = 0;       ///< blocks written to the cold tier
  std::int64_t kv_cold_reads = 0;
  std::int64_t session_bytes = 0;     ///< gauge: see runner::RunnerStats
  std::int64_t kv_failed_copies = 0;  ///< of whole sequences, in decoders with contiguous KV
};

}  // namespace genai::engine
