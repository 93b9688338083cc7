#include "genai/base/trace.h"

#include <algorithm>
#include <chrono>

namespace genai {

std::string_view name(TraceName which) {
  static constexpr std::array<std::string_view, kNumTraceNames> kNames = {
      "wait",     "inbox",       "step",        "publish",     "schedule",  "kv",        "execute", "inputs",
      "run",      "logits",      "sample",      "emit",        "update",    "bitmask",   "chunk",   "queued",
      "open",     "scheduled",   "first_token", "token",       "finished",  "running",   "waiting", "preemptions",
      "kv_bytes", "hot_used",    "hot_cached",  "warm_used",   "cold_used", "allocated", "freed",   "evicted",
      "copied",   "swapped_out", "swapped_in",  "cold_writes", "cold_reads"};
  return kNames[static_cast<std::size_t>(which)];
}

std::int64_t trace_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void TraceBuffer::add(TraceEvent event) {
  if (!current_ || current_->size.load(std::memory_order_relaxed) == kBlockEvents) next_block();
  const std::size_t place = current_->size.load(std::memory_order_relaxed);
  event.thread = thread_;
  current_->events[place] = event;
  current_->size.store(place + 1, std::memory_order_release);
}

void TraceBuffer::span(TraceName which, std::int64_t start_ns, std::int64_t end_ns, std::int64_t a, std::int64_t b) {
  add({.start_ns = start_ns,
       .duration_ns = end_ns - start_ns,
       .a = a,
       .b = b,
       .name = which,
       .kind = TraceKind::kSpan,
       .thread = thread_});
  if (fills_thread(which)) filled_ns_ = end_ns;
}

void TraceBuffer::counter(TraceName which, std::int64_t value) {
  add({.start_ns = trace_now_ns(), .a = value, .name = which, .kind = TraceKind::kCounter, .thread = thread_});
}

void TraceBuffer::next_block() {
  current_ = std::make_shared<Block>();
  const std::lock_guard lock(mutex_);
  blocks_.push_back(current_);
  while (blocks_.size() > max_blocks_) {
    Block& oldest = *blocks_.front();
    num_lost_ += static_cast<std::int64_t>(oldest.size.load(std::memory_order_acquire) - oldest.taken);
    blocks_.pop_front();
  }
}

void TraceBuffer::reset(std::size_t max_events, std::int64_t now_ns) {
  filled_ns_ = now_ns;
  std::vector<TraceEvent> forgotten;
  take(forgotten);
  const std::lock_guard lock(mutex_);
  max_blocks_ = std::max<std::size_t>(2, max_events / kBlockEvents);
  num_lost_ = 0;
}

std::int64_t TraceBuffer::take(std::vector<TraceEvent>& events) {
  // Full blocks change no more, so they are copied without the lock.
  struct Part {
    std::shared_ptr<Block> block;
    std::size_t first;
    std::size_t end;
  };
  std::vector<Part> parts;
  std::int64_t num_lost = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Block>& block : blocks_) {
      const std::size_t end = block->size.load(std::memory_order_acquire);
      if (end > block->taken) parts.push_back({block, block->taken, end});
      block->taken = end;
    }
    while (blocks_.size() > 1 && blocks_.front()->taken == kBlockEvents) blocks_.pop_front();
    num_lost = num_lost_;
  }
  for (const Part& part : parts) {
    const auto first = part.block->events.begin();
    events.insert(events.end(), first + static_cast<std::ptrdiff_t>(part.first),
                  first + static_cast<std::ptrdiff_t>(part.end));
  }
  return num_lost;
}

Tracer::Tracer() {
  for (std::size_t i = 0; i < kNumTraceThreads; ++i) {
    buffers_[i] = std::make_unique<TraceBuffer>(static_cast<TraceThread>(i), level_);
  }
}

void Tracer::start(TraceLevel level, std::size_t max_events, std::string ops_folder) {
  ops_folder_ = std::move(ops_folder);
  const std::int64_t now_ns = std::max(trace_now_ns(), started_ns() + 1);
  for (const std::unique_ptr<TraceBuffer>& buffer : buffers_) buffer->reset(max_events, now_ns);
  started_ns_.store(now_ns, std::memory_order_relaxed);
  level_.store(level, std::memory_order_relaxed);
}

Tracer::Taken Tracer::take() {
  Taken taken;
  for (const std::unique_ptr<TraceBuffer>& buffer : buffers_) taken.num_lost += buffer->take(taken.events);
  return taken;
}

}  // namespace genai
