#include "genai/engine/engine.h"

#include "genai/base/error.h"
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
  return std::make_unique<Engine>(std::make_unique<FakeRunner>(std::make_shared<FakeRunner::Faults>()),
                                  fake_token_table(), std::move(options));
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

}  // namespace
}  // namespace genai::engine
