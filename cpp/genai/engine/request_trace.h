#pragma once

#include "genai/base/trace.h"
#include "genai/core/request.h"
#include "genai/core/step.h"
#include "genai/engine/active_request.h"
#include "genai/engine/metrics.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace genai::engine {

/// What a trace tells about requests and totals. Each function does nothing unless `trace` records. Engine thread.
class RequestTrace {
 public:
  /// `trace`: a loan for the object's life.
  explicit RequestTrace(TraceBuffer& trace) : trace_(trace) {}

  /// `submitted`: seconds of steady_clock.
  void queued(const ActiveRequest& active) const;
  /// It was there when recording began.
  void open(const ActiveRequest& active) const;
  /// Its first tokens run in the step that began at `step_ns`.
  void scheduled(const ActiveRequest& active, std::int64_t num_cached_tokens, std::int64_t step_ns) const;
  /// A sequence of it ran in a step's execution, which took [start_ns, now].
  void ran(const ActiveRequest& active, const ScheduledSequence& sequence, std::int64_t start_ns) const;
  /// Before its event goes out; `is_first`: of its events with tokens.
  void emitted(const ActiveRequest& active, const Event& event, bool is_first) const;

  /// The totals and gauges that have changed since the last call of this recording (number `recording`).
  void counters(const Metrics& metrics, std::int64_t recording);

 private:
  void point(TraceName which, const ActiveRequest& active, std::int64_t at_ns, std::int64_t a,
             std::int64_t b = 0) const;

  static constexpr std::size_t kNumCounters = kNumTraceNames - static_cast<std::size_t>(TraceName::kRunning);
  TraceBuffer& trace_;
  std::int64_t recording_ = 0;
  std::array<std::int64_t, kNumCounters> last_ = {};
};

}  // namespace genai::engine
