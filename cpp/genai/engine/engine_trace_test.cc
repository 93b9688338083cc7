#include "genai/base/error.h"
#include "genai/engine/engine.h"
#include "genai/engine/fake_paged_runner.h"
#include "genai/engine/fake_runner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace genai::engine {
namespace {

using std::chrono::milliseconds;

Request greedy(std::vector<TokenId> prompt, std::int64_t max_new_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.params.temperature = 0.0F;
  request.params.max_new_tokens = max_new_tokens;
  return request;
}

std::unique_ptr<Engine> open(EngineOptions options = {}) {
  return std::make_unique<Engine>(std::make_unique<FakeRunner>(std::make_shared<Faults>()), fake_token_table(),
                                  std::move(options));
}

void wait_for_end(Engine& engine, RequestId id) {
  for (bool last = false; !last;) {
    for (const Event& event : engine.wait(id, milliseconds(100))) last = event.last;
  }
}

std::vector<TraceEvent> named(const std::vector<TraceEvent>& events, TraceName which) {
  std::vector<TraceEvent> found;
  std::ranges::copy_if(events, std::back_inserter(found), [&](const TraceEvent& e) { return e.name == which; });
  return found;
}

TEST_CASE("Engine_NotRecording_TracesNothing") {
  const auto engine = open();

  wait_for_end(*engine, engine->submit(greedy({1, 2, 3}, 5)));

  CHECK(engine->take_trace().events.empty());
}

TEST_CASE("Engine_Recording_SpansFillTheTimeOfTheThread") {
  const auto engine = open();
  engine->start_trace(TraceLevel::kFull, 100000, "");

  wait_for_end(*engine, engine->submit(greedy({1, 2, 3}, 500)));
  const std::int64_t idle_from = trace_now_ns();
  std::this_thread::sleep_for(milliseconds(50));
  const std::int64_t idle_to = trace_now_ns();
  wait_for_end(*engine, engine->submit(greedy({4, 5}, 500)));
  engine->stop_trace();

  std::int64_t last_end = 0;
  std::int64_t idle = 0;
  std::map<TraceName, int> counts;
  for (const TraceEvent& event : engine->take_trace().events) {
    if (!fills_thread(event.name) || event.thread != TraceThread::kEngine) continue;
    if (last_end != 0) CHECK(event.start_ns == last_end);
    CHECK(event.duration_ns >= 0);
    last_end = event.start_ns + event.duration_ns;
    ++counts[event.name];
    if (event.name == TraceName::kWait) {
      idle += std::max<std::int64_t>(0, std::min(last_end, idle_to) - std::max(event.start_ns, idle_from));
    }
  }
  CHECK(counts[TraceName::kStep] >= 1000);  // each token is one
  CHECK(counts[TraceName::kPublish] >= 1000);
  CHECK(idle > 0);
}

TEST_CASE("Engine_Recording_TellsTheLifeOfARequest") {
  const auto engine = open();
  engine->start_trace(TraceLevel::kFull, 100000, "");

  const RequestId id = engine->submit(greedy({1, 2, 3}, 5));
  wait_for_end(*engine, id);
  engine->stop_trace();

  const std::vector<TraceEvent> events = engine->take_trace().events;
  const auto queued = named(events, TraceName::kQueued);
  const auto scheduled = named(events, TraceName::kScheduled);
  const auto first = named(events, TraceName::kFirstToken);
  const auto finished = named(events, TraceName::kFinished);
  REQUIRE(queued.size() == 1);
  REQUIRE(scheduled.size() == 1);
  REQUIRE(first.size() == 1);
  REQUIRE(finished.size() == 1);
  CHECK(queued[0].id == id.value);
  CHECK(queued[0].a == 3);
  CHECK(queued[0].start_ns <= scheduled[0].start_ns);
  CHECK(scheduled[0].start_ns <= first[0].start_ns);
  CHECK(first[0].start_ns <= finished[0].start_ns);
  CHECK(finished[0].a == static_cast<std::int64_t>(FinishReason::kLength));
  CHECK(finished[0].b == 5);
  CHECK(named(events, TraceName::kToken).size() == 4);
  CHECK(named(events, TraceName::kChunk).size() == 5);
}

TEST_CASE("Engine_RecordingDecisions_CountsTokensOfSteps") {
  const auto engine = open();
  engine->start_trace(TraceLevel::kDecisions, 100000, "");

  wait_for_end(*engine, engine->submit(greedy({1, 2, 3}, 5)));
  engine->stop_trace();

  const std::vector<TraceEvent> events = engine->take_trace().events;
  std::int64_t of_prompts = 0;
  std::int64_t others = 0;
  for (const TraceEvent& step : named(events, TraceName::kStep)) {
    of_prompts += step.a;
    others += step.b;
  }
  CHECK(of_prompts == 3);
  CHECK(others == 4);  // the last token is not run
  CHECK(named(events, TraceName::kToken).empty());
  CHECK(named(events, TraceName::kChunk).empty());
  CHECK(named(events, TraceName::kFirstToken).size() == 1);
}

TEST_CASE("Engine_RecordingBegunInAnAnswer_NotesTheRequestAsOpen") {
  const auto engine = open();
  const RequestId id = engine->submit(greedy({1, 2, 3}, 100000));
  while (engine->wait(id, milliseconds(100)).empty()) {
  }

  engine->start_trace(TraceLevel::kDecisions, 100000, "");
  engine->abort(id);
  wait_for_end(*engine, id);
  engine->stop_trace();

  const std::vector<TraceEvent> events = engine->take_trace().events;
  const auto open_requests = named(events, TraceName::kOpen);
  REQUIRE(open_requests.size() == 1);
  CHECK(open_requests[0].a == 3);
  CHECK(open_requests[0].b == 2);
  REQUIRE(named(events, TraceName::kFinished).size() == 1);
  CHECK(named(events, TraceName::kFinished)[0].a == static_cast<std::int64_t>(FinishReason::kAbort));
}

TEST_CASE("Engine_RecordingCounters_GivesChangesOnly") {
  const auto engine = open();
  engine->start_trace(TraceLevel::kDecisions, 100000, "");

  wait_for_end(*engine, engine->submit(greedy({1, 2, 3}, 20)));
  engine->stop_trace();

  std::map<TraceName, std::int64_t> last;
  for (const TraceEvent& event : engine->take_trace().events) {
    if (event.kind != TraceKind::kCounter) continue;
    CHECK((!last.contains(event.name) || last[event.name] != event.a));
    last[event.name] = event.a;
  }
  CHECK(last[TraceName::kRunning] == 0);
  CHECK(last[TraceName::kAllocated] == last[TraceName::kFreed]);
  CHECK(last[TraceName::kAllocated] > 0);
}

TEST_CASE("Engine_ClosedWhileRecording_KeepsWhatWasRecorded") {
  const auto engine = open();
  engine->start_trace(TraceLevel::kDecisions, 100000, "");
  wait_for_end(*engine, engine->submit(greedy({1}, 3)));

  engine->close();
  engine->stop_trace();

  CHECK_FALSE(named(engine->take_trace().events, TraceName::kFinished).empty());
  CHECK_THROWS_AS(engine->start_trace(TraceLevel::kFull, 1000, ""), Error);
}

// Run under TSan, too.
TEST_CASE("Engine_ReadAndSwitchedWhileItRuns_StaysWhole") {
  const auto engine = open();
  std::atomic<bool> done{false};
  std::thread reader([&] {
    for (int i = 0; !done; ++i) {
      engine->start_trace(i % 2 == 0 ? TraceLevel::kFull : TraceLevel::kDecisions, 10000, "");
      for (int k = 0; k < 3; ++k) {
        for (const TraceEvent& event : engine->take_trace().events) CHECK(event.duration_ns >= 0);
      }
      engine->stop_trace();
    }
  });

  {
    std::vector<std::jthread> threads;
    for (TokenId t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 10; ++i) wait_for_end(*engine, engine->submit(greedy({t, 2, 3}, 20)));
      });
    }
  }
  done = true;
  reader.join();

  CHECK(engine->metrics().num_finished_requests == 40);
}

}  // namespace
}  // namespace genai::engine
