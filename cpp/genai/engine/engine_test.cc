#include "genai/engine/engine.h"

#include "genai/base/error.h"
#include "genai/engine/fake_runner.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
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
