#include "genai/engine/output_queue.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace genai::engine {
namespace {

using std::chrono::milliseconds;
using Ready = OutputQueue::Ready;

constexpr milliseconds kNow{0};
constexpr milliseconds kLong{10'000};

Event token(TokenId id) {
  Event event;
  event.tokens = {id};
  return event;
}

Event last_token(TokenId id) {
  Event event = token(id);
  event.finish = FinishReason::kLength;
  event.last = true;
  event.score = -0.5;
  return event;
}

std::vector<TokenId> tokens_of(const std::vector<Event>& events) {
  std::vector<TokenId> tokens;
  for (const Event& event : events) tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  return tokens;
}

TEST_CASE("SharedRequests_Pushed_WaitAnyTakesAllOfAll") {
  OutputQueue queue;
  for (std::uint64_t id : {1U, 2U, 3U}) queue.open(RequestId{id}, Delivery::kShared);

  queue.push(RequestId{1}, token(10));
  queue.push(RequestId{3}, token(30));
  queue.push(RequestId{1}, token(11));
  const std::vector<Ready> ready = queue.wait_any(kNow);

  REQUIRE(ready.size() == 2);
  CHECK(ready[0].id == RequestId{1});
  CHECK(tokens_of(ready[0].events) == std::vector<TokenId>{10, 11});
  CHECK(ready[1].id == RequestId{3});
  CHECK(queue.wait_any(kNow).empty());
}

TEST_CASE("OwnRequest_Pushed_WaitAnyDoesNotSeeIt") {
  OutputQueue queue;
  queue.open(RequestId{1});

  queue.push(RequestId{1}, token(10));

  CHECK(queue.wait_any(kNow).empty());
  CHECK(tokens_of(queue.wait(RequestId{1}, kNow)) == std::vector<TokenId>{10});
}

TEST_CASE("SharedAtEnd_Pushed_ComesWholeAfterItsLastEvent") {
  OutputQueue queue;
  queue.open(RequestId{1}, Delivery::kSharedAtEnd);

  queue.push(RequestId{1}, token(10));
  CHECK(queue.wait_any(kNow).empty());
  queue.push(RequestId{1}, last_token(11));
  const std::vector<Ready> ready = queue.wait_any(kNow);

  REQUIRE(ready.size() == 1);
  CHECK(tokens_of(ready[0].events) == std::vector<TokenId>{10, 11});
  CHECK(ready[0].events.back().last);
  CHECK(ready[0].events.back().score == std::optional<double>(-0.5));
  CHECK_THROWS_AS(queue.wait(RequestId{1}, kNow), Error);
}

TEST_CASE("SharedRequest_ClosedBeforeItIsTaken_IsLeftOut") {
  OutputQueue queue;
  queue.open(RequestId{1}, Delivery::kShared);
  queue.push(RequestId{1}, token(10));

  queue.close(RequestId{1});

  CHECK(queue.wait_any(kNow).empty());
}

TEST_CASE("Shut_WhileWaitAnyWaits_WakesItAndLeavesWhatWasPushed") {
  OutputQueue queue;
  queue.open(RequestId{1}, Delivery::kShared);
  std::vector<Ready> ready;
  std::optional<ErrorCode> code;

  std::thread reader([&] {
    try {
      for (;;) {
        for (Ready& each : queue.wait_any(kLong)) ready.push_back(std::move(each));
      }
    } catch (const Error& error) {
      code = error.code();
    }
  });
  queue.push(RequestId{1}, last_token(7));
  queue.shut();
  reader.join();

  REQUIRE(ready.size() == 1);
  CHECK(tokens_of(ready[0].events) == std::vector<TokenId>{7});
  CHECK(code == ErrorCode::kAborted);
}

TEST_CASE("ManyWriters_OneReader_NothingIsLostAndOrderHolds") {
  constexpr int kRequests = 40;
  constexpr TokenId kTokens = 50;
  OutputQueue queue;
  for (int i = 0; i < kRequests; ++i) queue.open(RequestId{static_cast<std::uint64_t>(i)}, Delivery::kShared);
  std::map<std::uint64_t, std::vector<TokenId>> seen;

  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&queue, w] {
      for (TokenId t = 0; t < kTokens; ++t) {
        for (int i = w; i < kRequests; i += 4) {
          const RequestId id{static_cast<std::uint64_t>(i)};
          queue.push(id, t + 1 == kTokens ? last_token(t) : token(t));
        }
      }
    });
  }
  for (int ended = 0; ended < kRequests;) {
    for (const Ready& ready : queue.wait_any(kLong)) {
      const std::vector<TokenId> tokens = tokens_of(ready.events);
      std::vector<TokenId>& all = seen[ready.id.value];
      all.insert(all.end(), tokens.begin(), tokens.end());
      if (ready.events.back().last) ++ended;
    }
  }
  for (std::thread& writer : writers) writer.join();

  std::vector<TokenId> expected;
  for (TokenId t = 0; t < kTokens; ++t) expected.push_back(t);
  for (const auto& [id, tokens] : seen) CHECK(tokens == expected);
  CHECK(seen.size() == kRequests);
}

}  // namespace
}  // namespace genai::engine
