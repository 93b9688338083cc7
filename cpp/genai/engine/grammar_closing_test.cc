// What becomes of answers that run out of room under a grammar, over a fake grammar and fake decoders.

#include "genai/engine/fake_grammar.h"
#include "genai/engine/grammar_state.h"
#include "genai/engine/test_bench.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace genai::engine {
namespace {

constexpr TokenId kEos = 7;
const std::vector<TokenId> kEosIds = {kEos};

/// A state with its output and what ends it.
struct Bed {
  SamplingParams params;
  FakeGrammar grammar;
  grammar::Closing closing{*fake_token_table(), kFakeVocab};
  GrammarState state;
  SequenceOutput output;

  Bed(FakeGrammar::Places places, FakeGrammar::Options options, SamplingParams sampling = {})
      : params(std::move(sampling)),
        grammar(std::move(places), std::move(options)),
        state(grammar, {.num_tokens = kFakeVocab, .closing = &closing, .eos_ids = kEosIds}),
        output(0, params, kEosIds, fake_token_table()) {}

  /// Takes a sampled token that is followed by up to `room` tokens; returns the one that was taken.
  TokenId take(TokenId sampled, std::int64_t room, Event& event) {
    BitmaskJob job = state.job();
    job.matcher->fill_bitmask(job.bitmask);
    state.take(job);
    const TokenId token = state.settle(sampled, room);
    event = output.append(token, std::nullopt, room == 0);
    state.advance(token, room, output, event);
    return token;
  }
};

/// Rambling that may be ended by 5 and 6 at any time: each place allows to go on by 1 or 2, or to begin the end.
FakeGrammar::Options rambling(std::vector<std::size_t> may_end) {
  return {.eos_ids = {kEos}, .may_end = std::move(may_end), .forces = false};
}

EngineOptions options_with_eos() {
  EngineOptions options;
  options.eos_ids = {kEos};
  return options;
}

Request with_grammar(std::int64_t max_new_tokens, std::shared_ptr<const TokenGrammar> grammar) {
  Request request = greedy({3, 4}, max_new_tokens);
  request.grammar = std::move(grammar);
  return request;
}

}  // namespace

TEST_CASE("Closing_RoomForTheAnswer_LeavesEachTokenAlone") {
  Bed bed({{1, 2}, {1, 2}, {1, 2}}, {.forces = false});
  Event event;

  CHECK(bed.take(2, 2, event) == 2);
  CHECK(bed.take(1, 1, event) == 1);
  CHECK(bed.take(2, 0, event) == 2);
  CHECK(event.finish == FinishReason::kStop);
}

TEST_CASE("Closing_TokenBehindWhichThereIsNoEnd_EndsTheAnswerInstead") {
  Bed bed({{1, 2}, {1, 2}, {1, 2}, {1, 2}}, rambling({1, 2}));
  Event event;

  CHECK(bed.take(1, 2, event) == 1);
  CHECK(bed.take(1, 1, event) == 1);
  CHECK(bed.take(1, 0, event) == kEos);  // a third one would need a fourth
  CHECK(event.finish == FinishReason::kLength);
  CHECK(event.text.empty());
}

TEST_CASE("Closing_TooLittleRoomFromTheStart_LeavesEachTokenAlone") {
  Bed bed({{1, 2}, {1, 2}, {1, 2}}, {.forces = false});
  Event event;

  CHECK(bed.take(2, 1, event) == 2);
  CHECK(bed.take(2, 0, event) == 2);
  CHECK(event.finish == FinishReason::kLength);
}

TEST_CASE("Closing_EndIsTooFar_CostsLittle") {
  Bed bed(FakeGrammar::Places(1000, std::vector<TokenId>{1, 2, 3, 5, 8, 9, 11}), {.forces = false});
  Event event;
  const int before = FakeGrammar::num_bitmasks;

  for (std::int64_t room = 511; room >= 0; --room) CHECK(bed.take(3, room, event) == 3);

  CHECK(event.finish == FinishReason::kLength);
  // One for each token that was taken; the first look with some others; and the looks after it.
  CHECK(FakeGrammar::num_bitmasks - before < 512 + (256 + 96) + 500);
}

TEST_CASE("Closing_EngineWithEveryBudget_EndsWhereTheGrammarMay") {
  // Ends may come behind 3, 6 and 9 tokens.
  const FakeGrammar::Places places(9, std::vector<TokenId>{1, 2, 3, 5, 8, 9, 11});
  for (const bool forces : {true, false}) {
    for (const bool logprobs : {true, false}) {
      Bench bench(options_with_eos(), FakePagedSize{});
      const auto grammar = std::make_shared<FakeGrammar>(
          places, FakeGrammar::Options{.eos_ids = {kEos}, .may_end = {3, 6}, .forces = forces});
      for (std::int64_t budget = 1; budget <= 10; ++budget) {
        Request request = with_grammar(budget, grammar);
        request.params.logprobs = logprobs;
        request.params.n = 2;
        request.params.temperature = 1.0F;
        request.params.seed = 5;
        bench.add(static_cast<std::uint64_t>(budget), std::move(request));
      }
      bench.run();
      for (std::int64_t budget = 1; budget <= 10; ++budget) {
        for (int choice = 0; choice < 2; ++choice) {
          CAPTURE(budget);
          const Collected& got = bench.out[{static_cast<std::uint64_t>(budget), choice}];
          const auto count = std::ssize(got.tokens) - (got.tokens.back() == kEos ? 1 : 0);
          if (logprobs) CHECK(got.logprobs.size() == got.tokens.size());
          if (budget < 3) {
            CHECK(count == budget);
            CHECK(got.finish == FinishReason::kLength);
          } else {
            CHECK(count % 3 == 0);
            CHECK(count <= budget);
          }
        }
      }
    }
  }
}

}  // namespace genai::engine
