#pragma once

#include <cstdint>

namespace genai::engine {

/// Totals since the engine started, and gauges. Durations are seconds of a monotonic clock.
struct Metrics {
  std::int64_t num_requests = 0;           ///< submitted
  std::int64_t num_finished_requests = 0;  ///< with any reason
  std::int64_t num_failed_requests = 0;    ///< with an error
  std::int64_t num_aborted_requests = 0;
  std::int64_t num_steps = 0;
  std::int64_t num_prompt_tokens = 0;  ///< prompt tokens run
  std::int64_t num_generated_tokens = 0;
  double step_seconds = 0.0;  ///< whole steps: schedule, run, sample, update
  double run_seconds = 0.0;   ///< inside ONNX Runtime's Run
  double sample_seconds = 0.0;
  std::int64_t num_running = 0;         ///< gauge: sequences that run
  std::int64_t num_waiting = 0;         ///< gauge: sequences that wait
  std::int64_t kv_bytes = 0;            ///< gauge: bytes held for KV
  std::int64_t kv_reserved_tokens = 0;  ///< gauge
  std::int64_t kv_capacity_tokens = 0;  ///< token positions that the budget allows
};

}  // namespace genai::engine
