#include "genai/engine/engine_core.h"

#include "genai/engine/test_bench.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace genai::engine {
namespace {

TEST_CASE("Requests_OfDifferentLengths_EachEqualsItsOwnContinuation") {
  EngineOptions options;
  options.scheduler.max_num_seqs = 3;
  options.scheduler.max_num_batched_tokens = 5;
  options.scheduler.max_prefill_tokens_while_decoding = 2;
  Bench bench(options);
  std::vector<std::vector<TokenId>> prompts;
  for (TokenId i = 1; i <= 8; ++i) {
    prompts.emplace_back();
    for (TokenId j = 0; j < i * 3; ++j) prompts.back().push_back((i * j) % 31);
    bench.add(static_cast<std::uint64_t>(i), greedy(prompts.back(), 4 + i));
  }

  bench.run();

  for (std::size_t i = 1; i <= 8; ++i) {
    CHECK(bench.out[{i, 0}].tokens == fake_continuation(prompts[i - 1], 4 + i));
    CHECK(bench.out[{i, 0}].finish == FinishReason::kLength);
    CHECK(bench.num_last[i] == 1);
    CHECK(bench.last[i].usage.prompt_tokens == static_cast<std::int64_t>(prompts[i - 1].size()));
    CHECK(bench.last[i].usage.completion_tokens == static_cast<std::int64_t>(4 + i));
  }
}

TEST_CASE("Batch_WithOneFaultySequence_FailsOnlyThatOne") {
  Bench bench;
  bench.faults->throw_on_token = 30;
  bench.add(1, greedy({1, 2, 3}, 2));
  bench.add(2, greedy({1, 30, 3}, 2));
  bench.add(3, greedy({4, 5}, 2));

  bench.run();

  CHECK(bench.out[{1, 0}].tokens == fake_continuation({1, 2, 3}, 2));
  CHECK(bench.out[{2, 0}].finish == FinishReason::kError);
  REQUIRE(bench.out[{2, 0}].error);
  CHECK(bench.out[{2, 0}].error->code() == ErrorCode::kBackend);
  CHECK(bench.out[{3, 0}].tokens == fake_continuation({4, 5}, 2));
  CHECK(bench.core.metrics().num_failed_requests == 1);
}

TEST_CASE("InterruptedStep_IsPlannedAgain") {
  Bench bench;
  bench.add(1, greedy({1, 2, 3}, 4));
  bench.step();
  bench.faults->interrupt = true;
  CHECK_FALSE(bench.step());
  CHECK_FALSE(bench.step());
  bench.faults->interrupt = false;

  bench.run();

  CHECK(bench.out[{1, 0}].tokens == fake_continuation({1, 2, 3}, 4));
}

TEST_CASE("NanLogits_InOneRow_EndOnlyThatRequestWithAnError") {
  Bench bench;
  bench.faults->nan_on_token = 9;
  bench.add(1, greedy({1, 9}, 2));
  bench.add(2, greedy({1, 8}, 2));

  bench.run();

  CHECK(bench.out[{1, 0}].finish == FinishReason::kError);
  CHECK(bench.out[{1, 0}].error->code() == ErrorCode::kBackend);
  CHECK(bench.out[{2, 0}].finish == FinishReason::kLength);
}

TEST_CASE("Choices_OfOneRequest_ShareThePromptAndAllEnd") {
  EngineOptions options;
  options.scheduler.max_num_seqs = 3;  // two choices must wait
  Bench bench(options);
  Request request = greedy({1, 2, 3, 4}, 5);
  request.params.n = 5;
  bench.add(1, std::move(request));

  bench.run();

  for (int choice = 0; choice < 5; ++choice) {
    CHECK(bench.out[{1, choice}].tokens == fake_continuation({1, 2, 3, 4}, 5));
  }
  CHECK(bench.num_last[1] == 1);
  CHECK(bench.last[1].usage.completion_tokens == 25);
}

TEST_CASE("EosToken_Sampled_EndsWithStopAndNoText") {
  const std::vector<TokenId> expected = fake_continuation({1, 2, 3}, 3);
  EngineOptions options;
  options.eos_ids = {expected[2]};
  Bench bench(options);
  bench.add(1, greedy({1, 2, 3}, 10));
  Request ignoring = greedy({1, 2, 3}, 5);
  ignoring.params.ignore_eos = true;
  bench.add(2, std::move(ignoring));

  bench.run();

  CHECK(bench.out[{1, 0}].tokens == expected);
  CHECK(bench.out[{1, 0}].finish == FinishReason::kStop);
  CHECK(bench.out[{1, 0}].text == "<" + std::to_string(expected[0]) + "><" + std::to_string(expected[1]) + ">");
  CHECK(bench.out[{2, 0}].tokens.size() == 5);
}

TEST_CASE("StopString_AcrossTokens_EndsAndNeverLeaks") {
  const std::vector<TokenId> expected = fake_continuation({1, 2, 3}, 4);
  Bench bench;
  Request request = greedy({1, 2, 3}, 10);
  request.params.stop = {">" + std::string("<") + std::to_string(expected[2])};
  bench.add(1, std::move(request));

  bench.run();

  CHECK(bench.out[{1, 0}].text == "<" + std::to_string(expected[0]) + "><" + std::to_string(expected[1]));
  CHECK(bench.out[{1, 0}].finish == FinishReason::kStop);
  CHECK(bench.last[1].stop_index == 0);
}

TEST_CASE("Abort_OfARunningAndAWaitingRequest_FreesThemAndTheOthersGoOn") {
  EngineOptions options;
  options.scheduler.max_num_seqs = 2;
  Bench bench(options);
  bench.add(1, greedy({1, 2, 3}, 50));
  bench.add(2, greedy({4, 5}, 6));
  bench.add(3, greedy({6}, 6));
  bench.core.step(0.0);

  bench.core.abort(RequestId{1});
  bench.core.abort(RequestId{3});
  bench.core.abort(RequestId{99});
  bench.run();

  CHECK(bench.out[{1, 0}].finish == FinishReason::kAbort);
  CHECK(bench.out[{3, 0}].finish == FinishReason::kAbort);
  CHECK(bench.out[{2, 0}].tokens == fake_continuation({4, 5}, 6));
  CHECK(bench.core.metrics().num_aborted_requests == 2);
}

TEST_CASE("Prompt_AtTheContextLimit_IsRefusedAndTheOutputEndsAtTheLimit") {
  EngineOptions options;
  options.context_limit = 16;
  options.context_source = "a test";
  Bench bench(options);

  CHECK_THROWS_WITH_AS(bench.core.validate(greedy(std::vector<TokenId>(16, 1), 1)), doctest::Contains("16/16"), Error);
  bench.add(1, greedy({2, 4, 3}, 32));
  bench.run();

  CHECK(bench.out[{1, 0}].tokens.size() == 13);
  CHECK(bench.out[{1, 0}].finish == FinishReason::kLength);
}

TEST_CASE("KvBudget_SmallerThanAsked_GrantsLessAndSaysSo") {
  EngineOptions options;
  options.kv_budget_source = "a test";
  Bench bench(options, {.block_size = 1, .num_blocks = 10});

  CHECK_THROWS_AS(bench.core.validate(greedy(std::vector<TokenId>(10, 1), 1)), Error);
  bench.add(1, greedy({1, 2, 3}, 50));
  bench.run();

  CHECK(bench.out[{1, 0}].tokens.size() == 7);
  REQUIRE(bench.last[1].budget_cap);
  CHECK(bench.last[1].budget_cap->asked == 50);
  CHECK(bench.last[1].budget_cap->granted == 7);
}

TEST_CASE("BadRequests_AreRefusedWithTheirValue") {
  Bench bench;
  CHECK_THROWS_AS(bench.core.validate(greedy({}, 1)), Error);
  CHECK_THROWS_WITH_AS(bench.core.validate(greedy({31}, 1)), doctest::Contains("31"), Error);
  CHECK_THROWS_AS(bench.core.validate(greedy({-1}, 1)), Error);
}

class AddBias final : public LogitsHook {
 public:
  int calls = 0;
  std::size_t rows_seen = 0;
  void process(HookRows& rows) override {
    ++calls;
    rows_seen += rows.tokens.size();
    for (std::size_t i = 0; i < rows.tokens.size(); ++i) rows.logits[i * rows.vocab_size + 5] = 100.0F;
  }
};

class ThrowingHook final : public LogitsHook {
 public:
  void process(HookRows& /*rows*/) override { throw Error(ErrorCode::kInvalidArgument, "user code"); }
};

TEST_CASE("LogitsHook_SharedByTwoRequests_IsCalledOnceAStepForBothRows") {
  Bench bench;
  const auto hook = std::make_shared<AddBias>();
  for (std::uint64_t id = 1; id <= 2; ++id) {
    Request request = greedy({1, 2}, 3);
    request.logits_hooks = {hook};
    bench.add(id, std::move(request));
  }
  bench.run();

  CHECK(bench.out[{1, 0}].tokens == std::vector<TokenId>{5, 5, 5});
  CHECK(hook->calls == 3);
  CHECK(hook->rows_seen == 6);
}

TEST_CASE("LogitsHook_ThatThrows_EndsOnlyItsOwnRequests") {
  Bench bench;
  Request request = greedy({1, 2}, 3);
  request.logits_hooks = {std::make_shared<ThrowingHook>()};
  bench.add(1, std::move(request));
  bench.add(2, greedy({1, 2}, 3));
  bench.run();

  CHECK(bench.out[{1, 0}].finish == FinishReason::kError);
  CHECK(bench.out[{2, 0}].tokens == fake_continuation({1, 2}, 3));
}

}  // namespace
}  // namespace genai::engine
