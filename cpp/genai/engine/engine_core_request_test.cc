// Requests with priorities, timeouts and beams.

#include "genai/engine/test_bench.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

namespace genai::engine {
namespace {

TEST_CASE("Timeout_Reached_EndsWithDeadlineExceededAndWhatIsThere") {
  Bench bench;
  Request request = greedy({1, 2, 3}, 100);
  request.timeout_seconds = 5.0;
  bench.add(1, std::move(request));
  Request in_time = greedy({4, 5}, 3);
  in_time.timeout_seconds = 5.0;
  bench.add(2, std::move(in_time));

  bench.run();

  const Collected& out = bench.out[{1, 0}];
  CHECK(out.tokens == fake_continuation({1, 2, 3}, 4));  // steps at 1, 2, 3 and 4 seconds
  CHECK(out.finish == FinishReason::kError);
  REQUIRE(out.error);
  CHECK(out.error->code() == ErrorCode::kDeadlineExceeded);
  CHECK(bench.num_last[1] == 1);
  CHECK(bench.last[1].usage.completion_tokens == 4);
  CHECK(bench.out[{2, 0}].finish == FinishReason::kLength);
  CHECK(bench.core.metrics().num_expired_requests == 1);
}

TEST_CASE("Timeout_OfAWaitingRequest_EndsItWithoutATokenWhileOthersRun") {
  EngineOptions options;
  options.scheduler.max_num_seqs = 1;
  Bench bench(options);
  bench.add(1, greedy({1, 2, 3}, 20));
  Request waits = greedy({4}, 3);
  waits.params.n = 2;
  waits.timeout_seconds = 4.0;
  bench.add(2, std::move(waits));

  bench.run();

  CHECK(bench.out[{1, 0}].tokens == fake_continuation({1, 2, 3}, 20));
  for (int choice = 0; choice < 2; ++choice) {
    CHECK(bench.out[{2, choice}].tokens.empty());
    CHECK(bench.out[{2, choice}].finish == FinishReason::kError);
  }
  CHECK(bench.num_last[2] == 1);
}

TEST_CASE("EncoderInputs_ForAModelWithoutAnEncoder_AreRefused") {
  const Bench bench;
  Request request = greedy({1}, 1);
  request.encoder_inputs = std::make_shared<EncoderInputs>();

  CHECK_THROWS_WITH_AS(bench.core.validate(request), doctest::Contains("this model has no encoder"), Error);
}

TEST_CASE("BadTimeouts_AreRefused") {
  Bench bench;
  for (const double bad :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Request request = greedy({1}, 1);
    request.timeout_seconds = bad;
    CHECK_THROWS_WITH_AS(bench.core.validate(request), doctest::Contains("timeout is"), Error);
  }
}

TEST_CASE("Times_OfARequestThatHadToWait_AreItsQueueAndItsPrefill") {
  EngineOptions options;
  options.scheduler.max_num_seqs = 1;
  options.scheduler.max_num_batched_tokens = 4;
  Bench bench(options);
  bench.add(1, greedy({1, 2, 3}, 2));                  // runs at 1 and 2 seconds
  bench.add(2, greedy({4, 5, 6, 7, 8, 9, 10, 1}, 3));  // its prompt needs two steps: at 3 and 4 seconds

  bench.run();

  REQUIRE(bench.last[1].times);
  CHECK(bench.last[1].times->queued == doctest::Approx(1.0));
  CHECK(bench.last[1].times->prefill == doctest::Approx(0.0).epsilon(0.05));
  REQUIRE(bench.last[2].times);
  CHECK(bench.last[2].times->queued == doctest::Approx(3.0));
  CHECK(bench.last[2].times->prefill == doctest::Approx(1.0).epsilon(0.05));
}

TEST_CASE("Times_OfARequestThatNeverRan_AreNotThere") {
  Bench bench;
  bench.add(1, greedy({1, 2, 3}, 2));
  bench.core.abort(RequestId{1});

  CHECK_FALSE(bench.last[1].times);
  bench.check_idle();
}

TEST_CASE("StepsByTokens_AfterAPromptAndItsAnswer_CountBothKindsOfSteps") {
  Bench bench;
  bench.add(1, greedy({1, 2, 3, 4, 5, 6, 7}, 3));

  bench.run();

  const Metrics metrics = bench.core.metrics();  // one step of 7 tokens, two of 1
  CHECK(metrics.steps_by_tokens[0] == 2);
  CHECK(metrics.steps_by_tokens[3] == 1);
  CHECK(metrics.num_step_tokens == 9);
}

TEST_CASE("HigherPriority_ArrivingLater_EndsFirst") {
  EngineOptions options;
  options.scheduler.max_num_seqs = 1;
  Bench bench(options);
  bench.add(1, greedy({1, 2, 3}, 8));
  bench.step();
  Request urgent = greedy({4, 5}, 3);
  urgent.priority = 1;
  bench.add(2, std::move(urgent));
  while (bench.num_last[2] == 0) bench.step();

  CHECK(bench.num_last[1] == 0);
  bench.run();
  CHECK(bench.out[{1, 0}].tokens == fake_continuation({1, 2, 3}, 8));
  CHECK(bench.out[{2, 0}].tokens == fake_continuation({4, 5}, 3));
}

Request beams(std::vector<TokenId> prompt, std::int64_t max_new_tokens, int num_beams, int n = 1) {
  Request request = greedy(std::move(prompt), max_new_tokens);
  request.params.num_beams = num_beams;
  request.params.n = n;
  return request;
}

TEST_CASE("Beams_OfOneRequest_GiveOneEventAChoiceWithFallingScores") {
  Bench bench({}, FakePagedSize{});
  bench.add(1, beams({1, 2, 3}, 6, 4, 3));

  bench.run();

  double before = 0.0;
  for (int choice = 0; choice < 3; ++choice) {
    const Collected& out = bench.out[{1, choice}];
    CHECK(out.tokens.size() == 6);
    std::string text;
    for (const TokenId token : out.tokens) text += "<" + std::to_string(token) + ">";
    CHECK(out.text == text);
    REQUIRE(out.score);
    CHECK(*out.score < before);
    before = *out.score;
  }
  CHECK(bench.last[1].usage.completion_tokens == 18);
}

TEST_CASE("Beams_WithLogprobs_SumUpToTheScore") {
  Bench bench({}, FakePagedSize{});
  Request request = beams({1, 2, 3}, 5, 3, 2);
  request.params.logprobs = true;
  request.params.top_logprobs = 2;
  bench.add(1, std::move(request));

  bench.run();

  for (int choice = 0; choice < 2; ++choice) {
    const Collected& out = bench.out[{1, choice}];
    REQUIRE(out.logprobs.size() == 5);
    double sum = 0.0;
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(out.logprobs[i].token == out.tokens[i]);
      CHECK(out.logprobs[i].top.size() == 2);
      sum += static_cast<double>(out.logprobs[i].logprob);
    }
    CHECK(*out.score == doctest::Approx(sum / 5.0));
  }
}

TEST_CASE("StopString_InOneBeam_EndsThatBeam") {
  Bench bench({}, FakePagedSize{});
  Request plain = beams({1, 2, 3}, 6, 3);
  bench.add(1, plain);
  bench.run();
  const std::vector<TokenId> best = bench.out[{1, 0}].tokens;
  Request request = plain;
  request.params.stop = {"<" + std::to_string(best[1]) + ">"};
  request.params.length_penalty = -2.0F;  // short sequences win
  request.params.n = 3;
  bench.add(2, std::move(request));

  bench.run();

  bool found = false;
  for (int choice = 0; choice < 3; ++choice) {
    const Collected& out = bench.out[{2, choice}];
    if (out.finish != FinishReason::kStop) continue;
    found = true;
    CHECK(out.tokens.back() == best[1]);
    CHECK(out.text.find("<" + std::to_string(best[1]) + ">") == std::string::npos);
  }
  CHECK(found);
}

TEST_CASE("Beams_Aborted_GiveTheBestSoFar") {
  Bench bench({}, FakePagedSize{});
  bench.add(1, beams({1, 2, 3}, 50, 3, 2));
  for (int i = 0; i < 4; ++i) bench.step();

  bench.core.abort(RequestId{1});

  for (int choice = 0; choice < 2; ++choice) {
    CHECK(bench.out[{1, choice}].tokens.size() == 4);
    CHECK(bench.out[{1, choice}].finish == FinishReason::kAbort);
  }
  CHECK(bench.num_last[1] == 1);
  bench.check_idle();
}

TEST_CASE("Beams_OfWhichOneFails_EndTheRequestOnce") {
  Bench bench({}, FakePagedSize{});
  bench.faults->throw_on_token = 30;
  Request request = beams({1, 2, 3}, 8, 4, 4);
  request.params.logit_bias = {{30, 50.0F}};
  bench.add(1, std::move(request));
  bench.add(2, greedy({4, 5}, 8));

  bench.run();

  for (int choice = 0; choice < 4; ++choice) {
    CHECK(bench.out[{1, choice}].finish == FinishReason::kError);
    REQUIRE(bench.out[{1, choice}].error);
    CHECK(bench.out[{1, choice}].error->code() == ErrorCode::kBackend);
  }
  CHECK(bench.num_last[1] == 1);
  CHECK(bench.out[{2, 0}].tokens == fake_continuation({4, 5}, 8));
}

TEST_CASE("Beams_FewerThanAskedAllowed_EndTheRestWithAnError") {
  Bench bench({}, FakePagedSize{});
  Request request = beams({1, 2, 3}, 2, 3, 3);
  request.params.forced_tokens = {{0, 4}, {1, 5}};
  bench.add(1, std::move(request));

  bench.run();

  CHECK(bench.out[{1, 0}].tokens == std::vector<TokenId>{4, 5});
  for (int choice = 1; choice < 3; ++choice) {
    REQUIRE(bench.out[{1, choice}].error);
    CHECK(bench.out[{1, choice}].error->code() == ErrorCode::kInvalidArgument);
  }
}

class PrefersFive final : public LogitsHook {
 public:
  void process(HookRows& rows) override {
    for (std::size_t i = 0; i < rows.tokens.size(); ++i) rows.logits[i * rows.vocab_size + 5] = 0.0F;
  }
};

TEST_CASE("LogitsHook_WithBeams_ChangesTheLogProbabilitiesOfEachBeam") {
  Bench bench({}, FakePagedSize{});
  Request request = beams({1, 2, 3}, 4, 3);
  request.logits_hooks = {std::make_shared<PrefersFive>()};
  bench.add(1, std::move(request));

  bench.run();

  CHECK(bench.out[{1, 0}].tokens == std::vector<TokenId>{5, 5, 5, 5});
  CHECK(bench.out[{1, 0}].score == 0.0);
}

class TakesFirst final : public SamplerHook {
 public:
  std::vector<TokenId> sample(HookRows& rows) override { return std::vector<TokenId>(rows.tokens.size(), 0); }
};

TEST_CASE("Beams_ThatContradictTheRequestOrTheEngine_AreRefused") {
  EngineOptions options;
  options.scheduler.max_num_seqs = 4;
  Bench bench(options);
  CHECK_THROWS_WITH_AS(bench.core.validate(beams({1}, 2, 5)), doctest::Contains("max_num_seqs, which is 4"), Error);
  Request sampler = beams({1}, 2, 2);
  sampler.sampler_hook = std::make_shared<TakesFirst>();
  CHECK_THROWS_WITH_AS(bench.core.validate(sampler), doctest::Contains("does not sample"), Error);
  Request warm = beams({1}, 2, 2);
  warm.params.temperature = 0.5F;
  CHECK_THROWS_WITH_AS(bench.core.validate(warm), doctest::Contains("temperature is 0.5"), Error);
  CHECK_THROWS_WITH_AS(bench.core.validate(beams({1}, 2, 2, 3)), doctest::Contains("n is 3"), Error);
}

}  // namespace
}  // namespace genai::engine
