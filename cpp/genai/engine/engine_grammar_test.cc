// Requests with grammars in the engine, over a fake grammar and fake decoders.

#include "genai/engine/fake_grammar.h"
#include "genai/engine/test_bench.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace genai::engine {
namespace {

constexpr TokenId kEos = 7;

EngineOptions options_with_eos() {
  EngineOptions options;
  options.eos_ids = {kEos};
  return options;
}

bool may_end(const FakeGrammar& grammar, std::size_t place) {
  const std::vector<TokenId> allowed = grammar.allowed_at(place);
  return place == grammar.size() || std::ranges::find(allowed, kEos) != allowed.end();
}

/// What greedy search under a grammar gives, worked out by hand: where the grammar may end for the last time within the
/// limit, it ends.
std::vector<TokenId> expected_answer(std::vector<TokenId> history, const FakeGrammar& grammar, std::size_t limit) {
  std::vector<TokenId> out;
  std::size_t last_end = std::min(limit, grammar.size());
  while (last_end > 0 && !may_end(grammar, last_end)) --last_end;
  while (out.size() < limit && out.size() < grammar.size()) {
    std::vector<float> row;
    append_fake_row(history, row);
    std::vector<TokenId> allowed = grammar.allowed_at(out.size());
    std::ranges::sort(allowed);
    const TokenId best = *std::ranges::max_element(allowed, {}, [&](TokenId t) { return row[static_cast<size_t>(t)]; });
    const bool ends_here = out.size() == last_end && out.size() > 0;
    out.push_back(ends_here ? kEos : best);
    history.push_back(out.back());
    if (out.back() == kEos) break;
  }
  return out;
}

Request with_grammar(std::vector<TokenId> prompt, std::int64_t max_new_tokens,
                     std::shared_ptr<const TokenGrammar> grammar) {
  Request request = greedy(std::move(prompt), max_new_tokens);
  request.grammar = std::move(grammar);
  return request;
}

TEST_CASE("Grammar_Greedy_GivesTheBestAllowedTokens_ForcedOrNot") {
  for (const bool forces : {true, false}) {
    Bench bench(options_with_eos(), FakePagedSize{});
    for (int seed = 0; seed < 60; ++seed) {
      const auto grammar = FakeGrammar::random(seed, {kEos}, forces);
      bench.add(static_cast<std::uint64_t>(seed) + 1, with_grammar({3, seed % 31, 9}, 10, grammar));
    }
    bench.run();
    for (int seed = 0; seed < 60; ++seed) {
      CAPTURE(seed);
      const auto grammar = FakeGrammar::random(seed, {kEos}, forces);
      const Collected& got = bench.out[{static_cast<std::uint64_t>(seed) + 1, 0}];
      CHECK(got.tokens == expected_answer({3, seed % 31, 9}, *grammar, 10));
      const bool ends = got.tokens == expected_answer({3, seed % 31, 9}, *grammar, 100);
      CHECK(got.finish == (ends ? FinishReason::kStop : FinishReason::kLength));
    }
    CHECK(FakeGrammar::num_matchers == 0);
  }
}

TEST_CASE("Grammar_ManyChoicesWithASeed_AreTheSameForcedOrNot") {
  std::vector<std::vector<std::vector<TokenId>>> runs;
  for (const bool forces : {true, false}) {
    EngineOptions options = options_with_eos();
    options.scheduler.max_num_seqs = 256;
    Bench bench(options, FakePagedSize{.num_hot_blocks = 2048});
    for (int seed = 0; seed < 30; ++seed) {
      Request request = with_grammar({3, seed % 31, 9}, 12, FakeGrammar::random(seed, {kEos}, forces));
      request.params.temperature = 1.0F;
      request.params.seed = 5;
      request.params.n = 4;
      request.params.repetition_penalty = 1.2F;
      bench.add(static_cast<std::uint64_t>(seed) + 1, std::move(request));
    }
    bench.run();
    std::vector<std::vector<TokenId>>& texts = runs.emplace_back();
    for (const auto& [key, collected] : bench.out) texts.push_back(collected.tokens);
    CHECK(texts.size() == 120);
    CHECK(bench.core.metrics().num_recomputed_tokens == 0);
  }
  CHECK(runs[0] == runs[1]);
}

TEST_CASE("Grammar_ForcedTokens_TakeFewerSteps") {
  const FakeGrammar::Places places = {{1, 2}, {3}, {4}, {5}, {6}, {8, 9}};
  std::vector<std::int64_t> steps;
  for (const bool forces : {true, false}) {
    Bench bench(options_with_eos(), FakePagedSize{});
    bench.add(1,
              with_grammar({3, 4}, 50, std::make_shared<FakeGrammar>(places, FakeGrammar::Options{.forces = forces})));
    bench.run();
    CHECK(bench.out[{1, 0}].tokens.size() == 6);
    CHECK(bench.core.metrics().num_generated_tokens == 6);
    steps.push_back(bench.core.metrics().num_steps);
  }
  CHECK(steps[0] == 2);
  CHECK(steps[1] == 6);
}

TEST_CASE("Grammar_Logprobs_ThenNothingIsForcedAhead") {
  Bench bench(options_with_eos(), FakePagedSize{});
  const auto grammar = std::make_shared<FakeGrammar>(FakeGrammar::Places{{1, 2}, {3}, {4}}, FakeGrammar::Options{});
  Request request = with_grammar({3, 4}, 50, grammar);
  request.params.logprobs = true;
  bench.add(1, std::move(request));
  bench.run();
  CHECK(bench.out[{1, 0}].tokens.size() == 3);
  CHECK(bench.out[{1, 0}].logprobs.size() == 3);
}

TEST_CASE("Grammar_BitmaskFails_EndsItsRequestOnly") {
  Bench bench(options_with_eos(), FakePagedSize{});
  const auto broken =
      std::make_shared<FakeGrammar>(FakeGrammar::Places{{1}, {2, 3}, {4, 5}, {6}}, FakeGrammar::Options{.fails_at = 2});
  const auto good = FakeGrammar::random(4, {kEos});
  bench.add(1, with_grammar({3, 4}, 50, broken));
  bench.add(2, with_grammar({3, 4}, 50, good));
  bench.add(3, greedy({3, 4}, 8));
  bench.run();
  CHECK(bench.out[{1, 0}].finish == FinishReason::kError);
  CHECK(bench.out[{1, 0}].error->code() == ErrorCode::kBackend);
  CHECK(bench.out[{1, 0}].tokens.size() == 2);
  CHECK(bench.out[{2, 0}].tokens == expected_answer({3, 4}, *good, 50));
  CHECK(bench.out[{3, 0}].finish != FinishReason::kError);
}

TEST_CASE("Grammar_AcceptFails_EndsItsRequestOnly") {
  Bench bench(options_with_eos(), FakePagedSize{});
  const auto broken =
      std::make_shared<FakeGrammar>(FakeGrammar::Places{{1, 2}, {3}, {4}, {5}}, FakeGrammar::Options{.breaks_at = 2});
  bench.add(1, with_grammar({3, 4}, 50, broken));
  bench.add(2, greedy({3, 4}, 8));
  bench.run();
  CHECK(bench.out[{1, 0}].finish == FinishReason::kError);
  CHECK(bench.out[{1, 0}].error->code() == ErrorCode::kInternal);
  CHECK(bench.out[{2, 0}].finish != FinishReason::kError);
}

TEST_CASE("Grammar_TakenAwayAgainAndAgain_GoesOnWhereItStood") {
  const FakePagedSize size{.block_size = 4, .num_hot_blocks = 12, .num_warm_blocks = 3, .num_cold_blocks = 10};
  for (std::uint64_t round = 0; round < 20; ++round) {
    Bench bench(options_with_eos(), size);
    for (int seed = 0; seed < 12; ++seed) {
      bench.add(static_cast<std::uint64_t>(seed) + 1,
                with_grammar({3, seed, 9, 2, 8}, 14, FakeGrammar::random(seed, {kEos})));
    }
    for (std::uint64_t i = 0; i < 2000 && bench.core.has_work(); ++i) {
      const auto id = static_cast<std::uint64_t>(1 + uniform_at(round, 3, i) * 12);
      if (uniform_at(round, 4, i) < 0.4) bench.core.preempt(RequestId{id});
      bench.step();
    }
    bench.check_idle();
    for (int seed = 0; seed < 12; ++seed) {
      const auto grammar = FakeGrammar::random(seed, {kEos});
      CHECK(bench.out[{static_cast<std::uint64_t>(seed) + 1, 0}].tokens ==
            expected_answer({3, seed, 9, 2, 8}, *grammar, 14));
    }
  }
}

TEST_CASE("Grammar_Aborted_FreesItsMatchers") {
  Bench bench(options_with_eos(), FakePagedSize{});
  Request request = with_grammar(
      {3, 4}, 50, std::make_shared<FakeGrammar>(FakeGrammar::Places{{1, 2}, {3, 4}, {5}}, FakeGrammar::Options{}));
  request.params.n = 3;
  bench.add(1, std::move(request));
  bench.step();
  CHECK(FakeGrammar::num_matchers == 3);
  bench.core.abort(RequestId{1});
  bench.check_idle();
  CHECK(FakeGrammar::num_matchers == 0);
}

TEST_CASE("Grammar_EosIsIgnored_EndsTheAnswerAllTheSame") {
  Bench bench(options_with_eos(), FakePagedSize{});
  const auto grammar = std::make_shared<FakeGrammar>(FakeGrammar::Places{{1}, {2}, {kEos}},
                                                     FakeGrammar::Options{.eos_ids = {kEos}, .may_end = {2}});
  Request request = with_grammar({3, 4}, 50, grammar);
  request.params.ignore_eos = true;
  request.params.skip_special_tokens = false;
  bench.add(1, std::move(request));
  bench.run();
  CHECK(bench.out[{1, 0}].finish == FinishReason::kStop);
  CHECK(bench.out[{1, 0}].text == "<1><2>");
}

TEST_CASE("Grammar_WithBeams_IsRefused") {
  Bench bench(options_with_eos(), FakePagedSize{});
  Request request = with_grammar({3, 4}, 50, FakeGrammar::random(1, {}));
  request.params.num_beams = 2;
  CHECK_THROWS_WITH_AS(bench.core.validate(request), doctest::Contains("num_beams"), Error);
}

}  // namespace
}  // namespace genai::engine
