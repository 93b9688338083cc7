#include "genai/engine/request_trace.h"

namespace genai::engine {
namespace {

std::int64_t nanoseconds(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e9);
}

std::int64_t prompt_size(const ActiveRequest& active) {
  return static_cast<std::int64_t>(active.request.prompt.size());
}

}  // namespace

void RequestTrace::point(TraceName which, const ActiveRequest& active, std::int64_t at_ns, std::int64_t a,
                         std::int64_t b) const {
  trace_.add({.start_ns = at_ns, .id = active.id.value, .a = a, .b = b, .name = which, .kind = TraceKind::kPoint});
}

void RequestTrace::queued(const ActiveRequest& active) const {
  if (!trace_.on()) return;
  point(TraceName::kQueued, active, nanoseconds(active.submitted), prompt_size(active));
}

void RequestTrace::open(const ActiveRequest& active) const {
  if (!trace_.on()) return;
  const std::int64_t state = active.first_token ? 2 : active.started ? 1 : 0;
  point(TraceName::kOpen, active, trace_now_ns(), prompt_size(active), state);
}

void RequestTrace::scheduled(const ActiveRequest& active, std::int64_t num_cached_tokens, std::int64_t step_ns) const {
  if (!trace_.on() || step_ns == 0) return;
  point(TraceName::kScheduled, active, step_ns, num_cached_tokens);
}

void RequestTrace::ran(const ActiveRequest& active, const ScheduledSequence& sequence, std::int64_t start_ns) const {
  if (!trace_.on(TraceLevel::kFull) || start_ns == 0) return;
  trace_.add({.start_ns = start_ns,
              .duration_ns = trace_now_ns() - start_ns,
              .id = active.id.value,
              .a = sequence.num_scheduled_tokens,
              .b = sequence.num_computed_tokens,
              .name = TraceName::kChunk,
              .kind = TraceKind::kRequestSpan});
}

void RequestTrace::emitted(const ActiveRequest& active, const Event& event, bool is_first) const {
  if (!trace_.on()) return;
  const auto num_tokens = static_cast<std::int64_t>(event.tokens.size());
  if (is_first) {
    point(TraceName::kFirstToken, active, trace_now_ns(), num_tokens);
  } else if (num_tokens > 0 && trace_.on(TraceLevel::kFull)) {
    point(TraceName::kToken, active, trace_now_ns(), num_tokens);
  }
  if (event.last) {
    point(TraceName::kFinished, active, trace_now_ns(), static_cast<std::int64_t>(event.finish.value()),
          event.usage.completion_tokens);
  }
}

void RequestTrace::counters(const Metrics& metrics, std::int64_t recording) {
  if (!trace_.on()) return;
  const std::array<std::int64_t, kNumCounters> values = {metrics.num_running,           metrics.num_waiting,
                                                         metrics.num_preemptions,       metrics.kv_bytes,
                                                         metrics.kv_hot_used_blocks,    metrics.kv_hot_cached_blocks,
                                                         metrics.kv_warm_used_blocks,   metrics.kv_cold_used_blocks,
                                                         metrics.kv_allocated_blocks,   metrics.kv_freed_blocks,
                                                         metrics.kv_evicted_blocks,     metrics.kv_copied_blocks,
                                                         metrics.kv_swapped_out_blocks, metrics.kv_swapped_in_blocks,
                                                         metrics.kv_cold_writes,        metrics.kv_cold_reads};
  const bool is_first = recording != recording_;
  recording_ = recording;
  for (std::size_t i = 0; i < kNumCounters; ++i) {
    if (!is_first && values[i] == last_[i]) continue;
    trace_.counter(static_cast<TraceName>(static_cast<std::size_t>(TraceName::kRunning) + i), values[i]);
  }
  last_ = values;
}

}  // namespace genai::engine
