#include "genai/base/trace.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace genai {
namespace {

TEST_CASE("TraceName_EachValue_HasItsOwnText") {
  std::set<std::string> names;
  for (std::size_t i = 0; i < kNumTraceNames; ++i) names.emplace(name(static_cast<TraceName>(i)));

  CHECK(names.size() == kNumTraceNames);
  CHECK(name(TraceName::kWait) == "wait");
  CHECK(name(TraceName::kFirstToken) == "first_token");
  CHECK(name(TraceName::kColdReads) == "cold_reads");
}

TEST_CASE("TraceSpan_RecordingOff_LeavesNothing") {
  Tracer tracer;

  {
    const TraceSpan span(tracer.thread(TraceThread::kEngine), TraceName::kStep);
    CHECK(span.start_ns() == 0);
  }

  CHECK(tracer.take().events.empty());
  CHECK_FALSE(tracer.thread(TraceThread::kEngine).on());
}

TEST_CASE("TraceSpan_OnWhileOpen_IsLeftOut") {
  Tracer tracer;

  {
    const TraceSpan before(tracer.thread(TraceThread::kEngine), TraceName::kStep);
    tracer.start(TraceLevel::kFull, 10000, "");
  }

  CHECK(tracer.take().events.empty());
}

TEST_CASE("TraceSpan_OffWhileOpen_IsKeptWhole") {
  Tracer tracer;
  tracer.start(TraceLevel::kDecisions, 10000, "");

  {
    const TraceSpan span(tracer.thread(TraceThread::kEngine), TraceName::kRun, 7, 2);
    tracer.stop();
  }

  const Tracer::Taken taken = tracer.take();
  REQUIRE(taken.events.size() == 1);
  CHECK(taken.events[0].name == TraceName::kRun);
  CHECK(taken.events[0].a == 7);
  CHECK(taken.events[0].b == 2);
  CHECK(taken.events[0].start_ns >= tracer.started_ns());
  CHECK(taken.events[0].duration_ns >= 0);
}

TEST_CASE("TraceBuffer_Levels_IncludeThoseBelow") {
  Tracer tracer;
  TraceBuffer& buffer = tracer.thread(TraceThread::kEngine);

  tracer.start(TraceLevel::kOps, 10000, "/tmp/x");

  CHECK(buffer.on());
  CHECK(buffer.on(TraceLevel::kOps));
  CHECK_FALSE(buffer.on(TraceLevel::kFull));
  CHECK(tracer.ops_folder() == "/tmp/x");
}

TEST_CASE("TraceBuffer_Take_GivesEachEventOnceAndInOrder") {
  Tracer tracer;
  tracer.start(TraceLevel::kFull, 100 * TraceBuffer::kBlockEvents, "");
  TraceBuffer& buffer = tracer.thread(TraceThread::kGrammar);
  const auto count = static_cast<std::int64_t>(2 * TraceBuffer::kBlockEvents + 5);

  for (std::int64_t i = 0; i < count; ++i) buffer.counter(TraceName::kRunning, i);
  const Tracer::Taken first = tracer.take();
  buffer.counter(TraceName::kRunning, count);
  const Tracer::Taken second = tracer.take();

  REQUIRE(first.events.size() == static_cast<std::size_t>(count));
  bool in_order = true;
  for (std::int64_t i = 0; i < count; ++i) in_order = in_order && first.events[static_cast<std::size_t>(i)].a == i;
  CHECK(in_order);
  CHECK(first.events[0].thread == TraceThread::kGrammar);
  REQUIRE(second.events.size() == 1);
  CHECK(second.events[0].a == count);
  CHECK(second.num_lost == 0);
}

TEST_CASE("TraceBuffer_MoreThanItKeeps_DropsTheOldestAndCounts") {
  Tracer tracer;
  tracer.start(TraceLevel::kFull, 2 * TraceBuffer::kBlockEvents, "");
  TraceBuffer& buffer = tracer.thread(TraceThread::kEngine);
  const auto count = static_cast<std::int64_t>(5 * TraceBuffer::kBlockEvents);

  for (std::int64_t i = 0; i < count; ++i) buffer.counter(TraceName::kRunning, i);
  const Tracer::Taken taken = tracer.take();

  CHECK(taken.events.size() == 2 * TraceBuffer::kBlockEvents);
  CHECK(taken.num_lost == static_cast<std::int64_t>(3 * TraceBuffer::kBlockEvents));
  CHECK(taken.events.back().a == count - 1);
  CHECK(taken.events.front().a == taken.num_lost);
}

TEST_CASE("Tracer_StartedAgain_ForgetsWhatWasNotTaken") {
  Tracer tracer;
  tracer.start(TraceLevel::kFull, 10000, "");
  tracer.thread(TraceThread::kEngine).counter(TraceName::kRunning, 1);
  const std::int64_t first_start = tracer.started_ns();

  tracer.stop();
  tracer.start(TraceLevel::kFull, 10000, "");
  tracer.thread(TraceThread::kEngine).counter(TraceName::kRunning, 2);

  const Tracer::Taken taken = tracer.take();
  REQUIRE(taken.events.size() == 1);
  CHECK(taken.events[0].a == 2);
  CHECK(tracer.started_ns() > first_start);
}

// Run under TSan too: one thread writes, another switches and takes.
TEST_CASE("TraceBuffer_ReadWhileWritten_LosesNothingUncounted") {
  Tracer tracer;
  tracer.start(TraceLevel::kFull, 3 * TraceBuffer::kBlockEvents, "");
  constexpr std::int64_t kCount = 200000;
  std::atomic<bool> done{false};

  std::thread writer([&] {
    for (std::int64_t i = 0; i < kCount; ++i) {
      tracer.thread(TraceThread::kEngine).span(TraceName::kStep, i, i + 1, i, 2 * i);
    }
    done = true;
  });
  std::int64_t num_taken = 0;
  std::int64_t last = -1;
  bool whole = true;
  std::int64_t num_lost = 0;
  for (bool at_end = false; !at_end;) {
    at_end = done;
    const Tracer::Taken taken = tracer.take();
    num_lost = taken.num_lost;
    num_taken += static_cast<std::int64_t>(taken.events.size());
    for (const TraceEvent& event : taken.events) {
      whole = whole && event.a > last && event.b == 2 * event.a && event.start_ns == event.a;
      last = event.a;
    }
  }
  writer.join();

  CHECK(whole);
  CHECK(last == kCount - 1);
  CHECK(num_taken + num_lost == kCount);
}

}  // namespace
}  // namespace genai
