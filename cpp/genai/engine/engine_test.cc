#include "genai/engine/engine.h"

#include "genai/base/error.h"
#include "genai/engine/fake_paged_runner.h"
#include "genai/engine/fake_runner.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <latch>
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

struct Outcome {
  std::vector<TokenId> tokens;
  std::optional<FinishReason> finish;
};

Outcome take_all(Engine& engine, RequestId id) {
  Outcome outcome;
  for (bool last = false; !last;) {
    for (const Event& event : engine.wait(id, milliseconds(100))) {
      outcome.tokens.insert(outcome.tokens.end(), event.tokens.begin(), event.tokens.end());
      outcome.finish = event.finish;
      last = event.last;
    }
  }
  return outcome;
}

TEST_CASE("ManyThreads_SubmitAndWait_EachGetsItsOwnAnswer") {
  const auto engine = open();
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (TokenId t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (TokenId i = 0; i < 20; ++i) {
          const std::vector<TokenId> prompt{t, i, 3};
          const RequestId id = engine->submit(greedy(prompt, 1 + i));
          if (take_all(*engine, id).tokens != fake_continuation(prompt, static_cast<std::size_t>(1 + i))) ++wrong;
        }
      });
    }
  }
  CHECK(wrong == 0);
  CHECK(engine->metrics().num_finished_requests >= 0);
}

/// A hook that calls a function at its first step and leaves the logits as they are.
class CallingHook final : public LogitsHook {
 public:
  explicit CallingHook(std::function<void()> function) : function_(std::move(function)) {}
  void process(HookRows&) override {
    if (const auto function = std::exchange(function_, nullptr)) function();
  }

 private:
  std::function<void()> function_;
};

Request hooked(std::shared_ptr<LogitsHook> hook, std::int64_t max_new_tokens) {
  Request request = greedy({1, 2}, max_new_tokens);
  request.logits_hooks.push_back(std::move(hook));
  return request;
}

TEST_CASE("Hook_ThatWaitsForItsOwnEngine_EndsItsRequestWithAnError") {
  const auto engine = open();
  const auto waits = std::make_shared<CallingHook>([&] {
    const RequestId inner = engine->submit(greedy({1}, 1));
    (void)engine->wait(inner, milliseconds(1000));
  });
  const auto closes = std::make_shared<CallingHook>([&] { engine->close(); });

  CHECK(take_all(*engine, engine->submit(hooked(waits, 4))).finish == FinishReason::kError);
  CHECK(take_all(*engine, engine->submit(hooked(closes, 4))).finish == FinishReason::kError);
  CHECK(take_all(*engine, engine->submit(greedy({1, 2}, 4))).tokens == fake_continuation({1, 2}, 4));
}

TEST_CASE("Submit_FromAHookWhileTheEngineCloses_IsRefusedAndDoesNotBlock") {
  const auto engine = open();
  std::latch in_hook(1);
  std::atomic<bool> refused = false;
  const auto submits = std::make_shared<CallingHook>([&] {
    in_hook.count_down();
    while (!engine->closed()) std::this_thread::yield();
    try {
      engine->submit(greedy({1}, 1));
    } catch (const Error& error) {
      refused = error.code() == ErrorCode::kAborted;
    }
  });
  engine->submit(hooked(submits, 4));
  in_hook.wait();

  engine->close();

  CHECK(refused);
}

/// A hook that owns the engine it runs in, and stops at its first step until `go`.
struct OwningHook final : LogitsHook {
  OwningHook(std::shared_ptr<std::latch> go, std::shared_ptr<std::latch> gone)
      : go_latch(std::move(go)), gone_latch(std::move(gone)), engine(open()) {}
  ~OwningHook() override {
    engine.reset();
    gone_latch->count_down();
  }
  void process(HookRows&) override { go_latch->wait(); }

  std::shared_ptr<std::latch> go_latch;    // shared with the test
  std::shared_ptr<std::latch> gone_latch;  // shared with the test
  std::unique_ptr<Engine> engine;
};

TEST_CASE("Engine_WhoseLastOwnerIsAHook_IsFreedByItsThread") {
  const auto go = std::make_shared<std::latch>(1);
  const auto gone = std::make_shared<std::latch>(1);
  auto hook = std::make_shared<OwningHook>(go, gone);
  hook->engine->submit(hooked(hook, 1));

  hook.reset();  // the request is now the last owner
  go->count_down();

  gone->wait();
}

TEST_CASE("Close_WhileRequestsRun_EndsEachWithAbort") {
  const auto engine = open();
  const RequestId id = engine->submit(greedy({1, 2}, 1 << 30));

  engine->close();
  engine->close();

  CHECK(take_all(*engine, id).finish == FinishReason::kAbort);
  CHECK(engine->closed());
  CHECK_THROWS_WITH_AS(engine->submit(greedy({1}, 1)), doctest::Contains("closed"), Error);
}

TEST_CASE("Abort_FromAnotherThread_EndsTheRequestWithOneFinalEvent") {
  const auto engine = open();
  const RequestId id = engine->submit(greedy({1, 2}, 1 << 30));
  std::jthread other([&] { engine->abort(id); });

  CHECK(take_all(*engine, id).finish == FinishReason::kAbort);
  CHECK_THROWS_AS((void)engine->wait(id, milliseconds(1)), Error);
}

TEST_CASE("Drop_ForgetsTheEvents") {
  const auto engine = open();
  const RequestId id = engine->submit(greedy({1, 2}, 1 << 30));
  engine->drop(id);
  CHECK_THROWS_AS((void)engine->wait(id, milliseconds(1)), Error);
}

TEST_CASE("Queue_Full_RefusesOneMore") {
  EngineOptions options;
  options.max_queue = 2;
  const auto engine = open(options);
  const RequestId first = engine->submit(greedy({1}, 1 << 30));
  const RequestId second = engine->submit(greedy({1}, 1 << 30));

  CHECK_THROWS_WITH_AS(engine->submit(greedy({1}, 1)), doctest::Contains("queue is full"), Error);
  engine->abort(first);
  engine->abort(second);
  take_all(*engine, first);
  take_all(*engine, second);
  CHECK(take_all(*engine, engine->submit(greedy({1}, 1))).tokens.size() == 1);
}

TEST_CASE("SubmitAll_StartsAllInOneStepOrNone") {
  EngineOptions options;
  options.max_queue = 2;
  const auto engine = open(options);

  CHECK_THROWS_WITH_AS(engine->submit_all({greedy({1}, 1), greedy({2}, 1), greedy({3}, 1)}),
                       doctest::Contains("0 open and 3 new requests, but max_queue is 2"), Error);
  CHECK_THROWS_AS(engine->submit_all({greedy({1}, 1), greedy({}, 1)}), Error);
  CHECK(engine->metrics().num_requests == 0);
  const std::vector<RequestId> ids = engine->submit_all({greedy({1}, 3), greedy({2}, 3)});
  REQUIRE(ids.size() == 2);
  CHECK(take_all(*engine, ids[0]).tokens == fake_continuation({1}, 3));
  CHECK(take_all(*engine, ids[1]).tokens == fake_continuation({2}, 3));
  CHECK(engine->metrics().num_steps == 3);
}

TEST_CASE("SlowReader_GetsMergedEvents") {
  const auto engine = open();
  const RequestId slow = engine->submit(greedy({5}, 40));
  const RequestId fast = engine->submit(greedy({6}, 60));
  take_all(*engine, fast);

  const std::vector<Event> events = engine->wait(slow, milliseconds(1000));
  CHECK(events.size() == 1);
  CHECK(events.front().tokens == fake_continuation({5}, 40));
}

TEST_CASE("Metrics_WhenTheLastEventIsThere_CountTheRequest") {
  const auto engine = open();
  for (std::int64_t i = 1; i <= 50; ++i) {
    take_all(*engine, engine->submit(greedy({5}, 4)));
    CHECK(engine->metrics().num_finished_requests == i);
    CHECK(engine->metrics().num_generated_tokens == 4 * i);
  }
}

TEST_CASE("WaitForEnd_LeavesThePiecesUntilTheLastEvent") {
  const auto engine = open();
  const RequestId id = engine->submit(greedy({5}, 40));

  std::vector<Event> events;
  while (events.empty()) events = engine->wait(id, milliseconds(50), WaitFor::kEnd);

  CHECK(events.back().last);
  CHECK(events.front().tokens == fake_continuation({5}, 40));
}

std::unique_ptr<Engine> open_paged(EngineOptions options = {}) {
  return std::make_unique<Engine>(std::make_unique<FakePagedRunner>(std::make_shared<Faults>()), fake_token_table(),
                                  std::move(options));
}

TEST_CASE("Timeout_OfALongRequest_EndsItWithDeadlineExceeded") {
  const auto engine = open();
  Request request = greedy({1, 2}, 1 << 30);
  request.timeout_seconds = 0.02;
  const RequestId id = engine->submit(std::move(request));

  std::vector<Event> events;
  while (events.empty()) events = engine->wait(id, milliseconds(1000), WaitFor::kEnd);

  REQUIRE(events.back().error);
  CHECK(events.back().error->code() == ErrorCode::kDeadlineExceeded);
  CHECK(engine->metrics().num_expired_requests == 1);
}

TEST_CASE("Preempt_FromOtherThreads_ChangesNoToken") {
  const auto engine = open_paged();
  std::atomic<bool> stop = false;
  std::jthread other([&] {
    for (std::uint64_t id = 1; !stop; id = id % 8 + 1) engine->preempt(RequestId{id});
  });
  for (TokenId t = 1; t <= 8; ++t) {
    const std::vector<TokenId> prompt{t, 3, 5};
    CHECK(take_all(*engine, engine->submit(greedy(prompt, 60))).tokens == fake_continuation(prompt, 60));
  }
  stop = true;
}

TEST_CASE("ExportAndImport_WhileRequestsRun_AreDoneBetweenSteps") {
  const auto from = open_paged();
  const auto to = open_paged();
  const std::vector<TokenId> prompt(40, 6);
  take_all(*from, from->submit(greedy(prompt, 1)));
  const RequestId busy = to->submit(greedy({1, 2}, 200));

  const KvBytes kv = from->export_kv(prompt, "");
  CHECK(kv.num_tokens == 40);
  CHECK(static_cast<std::int64_t>(kv.bytes.size()) == 10 * from->block_bytes());
  CHECK(to->import_kv(prompt, "", kv.bytes) == 40);
  CHECK_THROWS_WITH_AS(to->import_kv(prompt, "", std::span(kv.bytes).first(8)), doctest::Contains("8 bytes"), Error);

  const RequestId id = to->submit(greedy(prompt, 3));
  std::vector<Event> events;
  while (events.empty()) events = to->wait(id, milliseconds(1000), WaitFor::kEnd);
  CHECK(events.back().usage.cached_tokens == 36);
  CHECK(events.front().tokens == fake_continuation(prompt, 3));
  CHECK(take_all(*to, busy).tokens == fake_continuation({1, 2}, 200));
  to->clear_prefix_cache();
  CHECK(to->export_kv(prompt, "").num_tokens == 0);
}

TEST_CASE("Calls_OnTheOwnThreadOrAfterClose_AreRefused") {
  const auto engine = open_paged();
  const auto preempts = std::make_shared<CallingHook>([&] { engine->preempt(RequestId{1}); });
  CHECK(take_all(*engine, engine->submit(hooked(preempts, 4))).finish == FinishReason::kError);

  engine->close();

  CHECK_THROWS_WITH_AS(engine->clear_prefix_cache(), doctest::Contains("closed"), Error);
}

TEST_CASE("Calls_WhileTheEngineCloses_EndAllTheSame") {
  for (int round = 0; round < 20; ++round) {
    const auto engine = open_paged();
    engine->submit(greedy({1, 2}, 100));
    std::atomic<int> ended = 0;
    {
      std::vector<std::jthread> callers;
      for (int i = 0; i < 4; ++i) {
        callers.emplace_back([&] {
          try {
            for (;;) engine->clear_prefix_cache();
          } catch (const Error& error) {
            if (error.code() == ErrorCode::kAborted) ++ended;
          }
        });
      }
      engine->close();
    }
    CHECK(ended == 4);
  }
}

TEST_CASE("SharedDelivery_OfManyRequests_ComesThroughOneReader") {
  const auto engine = open_paged();
  std::vector<RequestId> ids;
  for (TokenId t = 1; t <= 6; ++t) {
    ids.push_back(engine->submit(greedy({t, 2}, 10), t % 2 == 0 ? Delivery::kShared : Delivery::kSharedAtEnd));
  }
  std::vector<std::vector<TokenId>> tokens(ids.size());
  for (std::size_t num_ended = 0; num_ended < ids.size();) {
    for (const OutputQueue::Ready& ready : engine->wait_any(milliseconds(1000))) {
      for (const Event& event : ready.events) {
        std::vector<TokenId>& mine = tokens[ready.id.value - ids.front().value];
        mine.insert(mine.end(), event.tokens.begin(), event.tokens.end());
        if (event.last) ++num_ended;
      }
    }
  }
  for (TokenId t = 1; t <= 6; ++t) {
    CHECK(tokens[static_cast<std::size_t>(t - 1)] == fake_continuation({t, 2}, 10));
  }
  engine->close();
  CHECK_THROWS_AS((void)engine->wait_any(milliseconds(1)), Error);
}

}  // namespace
}  // namespace genai::engine
