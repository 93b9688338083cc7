// Storms: many random requests over both kinds of decoders with hardly any memory, with aborts, timeouts, preemption
// and failing moves. Whatever happens to a request, its tokens are those that it gets alone.

#include "genai/base/random.h"
#include "genai/engine/fake_grammar.h"
#include "genai/engine/test_bench.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace genai::engine {
namespace {

/// Random whole numbers that depend on the seed alone.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  int below(int limit) { return static_cast<int>(uniform_at(seed_, 1, count_++) * limit); }
  bool one_in(int count) { return below(count) == 0; }

 private:
  std::uint64_t seed_;
  std::uint64_t count_ = 0;
};

constexpr int kKinds = 150;
constexpr TokenId kEos = 7;

EngineOptions options_with_eos() {
  EngineOptions options;
  options.eos_ids = {kEos};
  return options;
}

/// One of kKinds requests: many share a prefix, some sample, fork or search with beams.
Request request_of(int kind) {
  Dice dice(static_cast<std::uint64_t>(kind) + 1000);
  const int family = dice.below(4);
  std::vector<TokenId> prompt;
  for (int i = dice.below(30); i >= 0; --i) prompt.push_back((family * 7 + i) % 31);
  std::ranges::reverse(prompt);
  if (dice.one_in(2)) prompt.push_back(dice.below(31));
  Request request = greedy(std::move(prompt), 1 + dice.below(16));
  SamplingParams& params = request.params;
  if (dice.one_in(3)) {
    params.temperature = 1.0F;
    params.seed = static_cast<std::uint64_t>(kind);
    params.top_k = 8;
  }
  if (dice.one_in(4)) params.n = 2 + dice.below(3);
  if (dice.one_in(5)) {
    params.temperature = 0.0F;
    params.num_beams = 2 + dice.below(3);
    params.n = 1 + dice.below(params.num_beams);
    params.length_penalty = static_cast<float>(dice.below(3));
    params.early_stopping = static_cast<EarlyStopping>(dice.below(3));
  }
  if (dice.one_in(6)) params.repetition_penalty = 1.3F;
  if (dice.one_in(8)) params.stop = {"><1"};
  if (dice.one_in(4)) request.cache_salt = "other";
  if (dice.one_in(3) && params.num_beams == 1) request.grammar = FakeGrammar::random(dice.below(1000), {kEos});
  return request;
}

/// What each kind of request gets alone.
std::map<std::pair<int, int>, Collected> answers_alone() {
  std::map<std::pair<int, int>, Collected> answers;
  for (int kind = 0; kind < kKinds; ++kind) {
    Bench bench(options_with_eos(), FakeSize{});
    bench.add(1, request_of(kind));
    bench.run();
    for (auto& [key, collected] : bench.out) answers[{kind, key.second}] = collected;
  }
  return answers;
}

const std::map<std::pair<int, int>, Collected>& alone() {
  static const std::map<std::pair<int, int>, Collected> answers = answers_alone();
  return answers;
}

class Storm {
 public:
  Storm(Bench& bench, std::uint64_t seed) : bench_(bench), dice_(seed) {}

  void run(int num_requests) {
    while (next_ <= static_cast<std::uint64_t>(num_requests) || bench_.core.has_work()) {
      for (int i = dice_.below(4); i > 0 && next_ <= static_cast<std::uint64_t>(num_requests); --i) arrive();
      disturb();
      bench_.step();
      REQUIRE(bench_.now < 1e6);
    }
    bench_.check_idle();
    for (std::uint64_t id = 1; id < next_; ++id) check_answers(id);
  }

 private:
  void arrive() {
    const int kind = dice_.below(kKinds);
    Request request = request_of(kind);
    request.priority = dice_.below(3);
    if (dice_.one_in(10)) request.timeout_seconds = 1.0 + dice_.below(60);
    kinds_.push_back(kind);
    bench_.add(next_++, std::move(request));
  }

  void disturb() {
    const auto any = [&] { return RequestId{1 + static_cast<std::uint64_t>(dice_.below(static_cast<int>(next_)))}; };
    if (dice_.one_in(12)) bench_.core.abort(any());
    if (dice_.one_in(3)) {
      for (std::uint64_t back = 0; back < 20; ++back) {
        if (next_ > back && dice_.one_in(4)) bench_.core.preempt(RequestId{next_ - back});
      }
    }
    if (dice_.one_in(300)) bench_.core.clear_prefix_cache();
    if (dice_.one_in(400)) bench_.faults->throw_in_apply = 1;
    bench_.faults->throw_on_token = dice_.one_in(100) ? dice_.below(31) : -1;
    bench_.faults->nan_on_token = dice_.one_in(100) ? dice_.below(31) : -1;
    bench_.faults->interrupt = dice_.one_in(100);
    if (dice_.one_in(20)) bench_.core.kv().check_invariants();
  }

  void check_answers(std::uint64_t id) {
    const int kind = kinds_[id - 1];
    const Request request = request_of(kind);
    CHECK(bench_.num_last[id] == 1);
    for (int choice = 0; choice < request.params.n; ++choice) {
      const Collected& got = bench_.out[{id, choice}];
      const Collected& expected = alone().at({kind, choice});
      REQUIRE(got.finish);
      if (*got.finish == FinishReason::kStop || *got.finish == FinishReason::kLength) {
        CHECK(got.tokens == expected.tokens);
        CHECK(got.text == expected.text);
        CHECK(got.finish == expected.finish);
        CHECK(got.score == expected.score);
      } else if (request.params.num_beams == 1) {  // ended early: a beginning of the answer
        REQUIRE(got.tokens.size() <= expected.tokens.size());
        CHECK(std::equal(got.tokens.begin(), got.tokens.end(), expected.tokens.begin()));
      }
      if (*got.finish == FinishReason::kError) {
        REQUIRE(got.error);
        const ErrorCode code = got.error->code();
        CHECK((code == ErrorCode::kDeadlineExceeded || code == ErrorCode::kBackend));
      }
    }
  }

  Bench& bench_;
  Dice dice_;
  std::uint64_t next_ = 1;
  std::vector<int> kinds_;
};

EngineOptions storm_options(bool prefix_cache) {
  EngineOptions options = options_with_eos();
  options.scheduler.max_num_seqs = 8;
  options.scheduler.max_num_batched_tokens = 24;
  options.scheduler.max_prefill_tokens_while_decoding = 7;
  options.prefix_cache = prefix_cache;
  return options;
}

TEST_CASE("Storm_OverContiguousKv_EachRequestEndsOnceWithItsOwnTokens") {
  for (const std::uint64_t seed : {1U, 2U}) {
    CAPTURE(seed);
    Bench bench(storm_options(true), FakeSize{.block_size = 4, .num_blocks = 24});
    bench.faults->fail_moves_in_1000 = seed == 1 ? 0 : 100;
    Storm(bench, seed).run(2000);
    CHECK((bench.core.metrics().kv_failed_copies > 0) == (seed != 1));
  }
}

TEST_CASE("Storm_OverPagedKvOfOneTier_EachRequestEndsOnceWithItsOwnTokens") {
  for (const std::uint64_t seed : {3U, 4U}) {
    CAPTURE(seed);
    Bench bench(storm_options(seed == 3), FakePagedSize{.block_size = 4, .num_hot_blocks = 24});
    Storm(bench, seed).run(2000);
    CHECK((bench.core.metrics().prefix_hit_tokens > 0) == (seed == 3));
  }
}

TEST_CASE("Storm_OverThreeTiersThatFail_EachRequestEndsOnceWithItsOwnTokens") {
  for (const std::uint64_t seed : {5U, 6U, 7U}) {
    CAPTURE(seed);
    const FakePagedSize size{.block_size = 4, .num_hot_blocks = 20, .num_warm_blocks = 7, .num_cold_blocks = 40};
    Bench bench(storm_options(true), size);
    bench.faults->fail_moves_in_1000 = seed == 5 ? 0 : 100;
    Storm(bench, seed).run(2000);
    CHECK(bench.core.metrics().kv_swapped_in_blocks > 0);
    CHECK((bench.faults->num_failed_moves > 0) == (seed != 5));
    CHECK(bench.core.metrics().num_preemptions > 0);
  }
}

}  // namespace
}  // namespace genai::engine
