#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace genai {

/// How much is recorded; each level has what those before it have.
enum class TraceLevel : std::uint8_t {
  kOff,
  kDecisions,  ///< what the engine does: steps and their parts, requests, KV
  kOps,        ///< operators of a part of the runs
  kFull,       ///< each token and each sequence of a step
};

/// Who writes: one thread each.
enum class TraceThread : std::uint8_t { kEngine, kGrammar };
inline constexpr std::size_t kNumTraceThreads = 2;

enum class TraceKind : std::uint8_t {
  kSpan,         ///< a piece of the thread's time
  kRequestSpan,  ///< a piece of a request's time
  kPoint,        ///< a moment of a request
  kCounter,      ///< `a` is the value from now on
};

/// What an event tells; name() gives the text. `a` and `b` are the event's two numbers.
enum class TraceName : std::uint8_t {
  // Spans of the engine thread that fill its time: each begins where the one before it ended.
  kWait,     ///< nothing to do
  kInbox,    ///< taking requests and calls of other threads
  kStep,     ///< a: prompt tokens, b: other tokens
  kPublish,  ///< handing events to readers
  // Inside a step.
  kSchedule,
  kKv,       ///< KV operations; a: how many
  kExecute,  ///< the decoder; a: tokens, b: sequences
  kInputs,   ///< inside kExecute, as the next two
  kRun,      ///< ONNX Runtime's Run; a: tokens, b: 1 + number of its file of operators, or 0
  kLogits,
  kSample,  ///< a: rows
  kEmit,    ///< text of the tokens, stop strings
  kUpdate,  ///< bookkeeping of sequences, beams
  // Spans of the grammar thread.
  kBitmask,
  // Pieces of a request.
  kChunk,  ///< a: tokens that ran, b: tokens before them
  // Moments of a request.
  kQueued,      ///< a: prompt tokens
  kOpen,        ///< it was there when recording began; a: prompt tokens, b: 0 queued, 1 in its prompt, 2 decoding
  kScheduled,   ///< a: cached tokens
  kFirstToken,  ///< a: tokens
  kToken,       ///< a: tokens
  kFinished,    ///< a: FinishReason, b: tokens of all choices
  // Counters.
  kRunning,
  kWaiting,
  kPreemptions,
  kKvBytes,
  kHotUsed,  ///< blocks, as all that follow
  kHotCached,
  kWarmUsed,
  kColdUsed,
  kAllocated,  ///< total since the engine started, as all that follow
  kFreed,
  kEvicted,
  kCopied,
  kSwappedOut,
  kSwappedIn,
  kColdWrites,
  kColdReads,
};
inline constexpr std::size_t kNumTraceNames = static_cast<std::size_t>(TraceName::kColdReads) + 1;

/// E.g. "first_token".
std::string_view name(TraceName which);

/// True for the spans that fill the time of the engine thread.
constexpr bool fills_thread(TraceName which) {
  return which <= TraceName::kPublish;
}

/// A record; plain memory, so that rows of them can be handed over as bytes. Times: nanoseconds of steady_clock.
struct TraceEvent {
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;  ///< of spans, else 0
  std::uint64_t id = 0;          ///< of a request, else 0
  std::int64_t a = 0;
  std::int64_t b = 0;
  TraceName name = TraceName::kWait;
  TraceKind kind = TraceKind::kSpan;
  TraceThread thread = TraceThread::kEngine;
  std::uint8_t padding[5] = {};
};
static_assert(sizeof(TraceEvent) == 48);

std::int64_t trace_now_ns();

/// What one thread records. It costs one relaxed load while recording is off, else little more than looking at the
/// clock (benchmarks/micro/trace_bench.cc), and never waits for a reader but when one block is full. Memory is bounded:
/// the oldest block is dropped, and counted.
///
/// The writing methods: one thread. The others: any thread.
class TraceBuffer {
 public:
  static constexpr std::size_t kBlockEvents = 4096;

  TraceBuffer(TraceThread thread, const std::atomic<TraceLevel>& level) : thread_(thread), level_(level) {}

  bool on(TraceLevel at_least = TraceLevel::kDecisions) const noexcept {
    return level_.load(std::memory_order_relaxed) >= at_least;
  }

  void add(TraceEvent event);
  void span(TraceName which, std::int64_t start_ns, std::int64_t end_ns, std::int64_t a = 0, std::int64_t b = 0);
  void counter(TraceName which, std::int64_t value);

  /// Where the next span that fills the thread's time begins: at the end of the last one, or at the last reset.
  /// Writer only.
  std::int64_t filled_ns() const noexcept { return filled_ns_; }

  /// Forgets what is there, and keeps at most `max_events` (at least two blocks) from `now_ns` on.
  /// Requires: called by the writer, or when there is none.
  void reset(std::size_t max_events, std::int64_t now_ns);
  /// Appends the events that were not taken yet to `events`; returns how many were lost since the last reset.
  std::int64_t take(std::vector<TraceEvent>& events);

 private:
  struct Block {
    std::array<TraceEvent, kBlockEvents> events;
    std::atomic<std::size_t> size{0};  ///< events below it do not change any more
    std::size_t taken = 0;             ///< guarded by mutex_
  };
  void next_block();

  const TraceThread thread_;
  const std::atomic<TraceLevel>& level_;
  std::shared_ptr<Block> current_;  ///< writer only; shared with blocks_, which may drop it
  std::int64_t filled_ns_ = 0;      ///< writer only
  std::mutex mutex_;
  std::deque<std::shared_ptr<Block>> blocks_;  ///< oldest first; guarded by mutex_
  std::size_t max_blocks_ = 2;                 ///< guarded by mutex_
  std::int64_t num_lost_ = 0;                  ///< guarded by mutex_
};

/// The buffers of an engine's threads, switched on and off together. Thread-safe but for ops_folder().
class Tracer {
 public:
  Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  TraceBuffer& thread(TraceThread which) { return *buffers_[static_cast<std::size_t>(which)]; }

  /// Starts anew; what was not taken is forgotten. `ops_folder`: where ONNX Runtime writes its files; empty = nowhere.
  /// Requires: called by the engine thread, or when there is none.
  void start(TraceLevel level, std::size_t max_events, std::string ops_folder);
  /// What was recorded stays until it is taken.
  void stop() { level_.store(TraceLevel::kOff, std::memory_order_relaxed); }
  TraceLevel level() const { return level_.load(std::memory_order_relaxed); }

  /// Engine thread only.
  const std::string& ops_folder() const { return ops_folder_; }
  /// When the last start() was; 0 = never. Counts up with each start, so it tells recordings apart.
  std::int64_t started_ns() const { return started_ns_.load(std::memory_order_relaxed); }

  struct Taken {
    std::vector<TraceEvent> events;  ///< of each thread in the order in which they ended
    std::int64_t num_lost = 0;       ///< since the start
  };
  Taken take();

 private:
  std::atomic<TraceLevel> level_{TraceLevel::kOff};
  std::atomic<std::int64_t> started_ns_{0};
  std::array<std::unique_ptr<TraceBuffer>, kNumTraceThreads> buffers_;
  std::string ops_folder_;
};

/// Records the time from its construction, or for spans that fill the thread's time from the end of the last of them,
/// to its end. Does nothing when recording is off at its construction.
class TraceSpan {
 public:
  TraceSpan(TraceBuffer& buffer, TraceName which, std::int64_t a = 0, std::int64_t b = 0)
      : buffer_(buffer.on() ? &buffer : nullptr), which_(which), a_(a), b_(b) {
    if (buffer_ != nullptr) start_ns_ = fills_thread(which) ? buffer_->filled_ns() : trace_now_ns();
  }
  ~TraceSpan() {
    if (buffer_ != nullptr) buffer_->span(which_, start_ns_, trace_now_ns(), a_, b_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  void set(std::int64_t a, std::int64_t b) {
    a_ = a;
    b_ = b;
  }
  std::int64_t start_ns() const { return start_ns_; }  ///< 0 when nothing is recorded

 private:
  TraceBuffer* const buffer_;
  const TraceName which_;
  std::int64_t a_;
  std::int64_t b_;
  std::int64_t start_ns_ = 0;
};

}  // namespace genai
