#include "genai/engine/grammar_state.h"

#include "genai/engine/fake_grammar.h"

#include <doctest/doctest.h>

#include <vector>

namespace genai::engine {
namespace {

constexpr TokenId kEos = 7;

/// A state with its output, whose bitmasks are computed at once.
struct Bed {
  SamplingParams params;
  FakeGrammar grammar;
  GrammarState state;
  SequenceOutput output;

  Bed(FakeGrammar::Places places, FakeGrammar::Options options, SamplingParams sampling = {})
      : params(std::move(sampling)),
        grammar(std::move(places), std::move(options)),
        state(grammar, {.num_tokens = kFakeVocab}),
        output(0, params, std::vector<TokenId>{kEos}, fake_token_table()) {}

  std::vector<TokenId> take(TokenId token, std::int64_t room, Event& event) {
    BitmaskJob job = state.job();
    job.matcher->fill_bitmask(job.bitmask);
    state.take(job);
    event = output.append(token, std::nullopt, room == 0);
    return state.advance(token, room, output, event);
  }
};

TEST_CASE("GrammarState_TokensThatMustFollow_AreAppendedAtOnce") {
  Bed bed({{1, 2}, {3}, {4}, {5, 6}}, {});
  Event event;
  CHECK(bed.take(2, 100, event) == std::vector<TokenId>{3, 4});
  CHECK(event.tokens == std::vector<TokenId>{2, 3, 4});
  CHECK(event.text == "<2><3><4>");
  CHECK_FALSE(event.finish);
  CHECK(bed.take(6, 100, event).empty());
  CHECK(event.finish == FinishReason::kStop);
}

TEST_CASE("GrammarState_NothingMayFollowForcedTokens_EndsWithStop") {
  Bed bed({{1, 2}, {3}, {4}}, {});
  Event event;
  CHECK(bed.take(1, 2, event) == std::vector<TokenId>{3, 4});  // the room is used up as well
  CHECK(event.finish == FinishReason::kStop);
  CHECK(event.text == "<1><3><4>");
}

TEST_CASE("GrammarState_RoomForFewer_EndsWithLength") {
  Bed bed({{1, 2}, {3}, {4}, {5}}, {});
  Event event;
  CHECK(bed.take(1, 2, event) == std::vector<TokenId>{3, 4});
  CHECK(event.finish == FinishReason::kLength);
}

TEST_CASE("GrammarState_LastTokenCompletesTheGrammar_EndsWithStopNotLength") {
  Bed bed({{1, 2}}, {});
  Event event;
  CHECK(bed.take(1, 0, event).empty());
  CHECK(event.finish == FinishReason::kStop);
}

TEST_CASE("GrammarState_LastTokenLeavesItOpen_EndsWithLength") {
  Bed bed({{1, 2}, {3, 4}}, {});
  Event event;
  CHECK(bed.take(1, 0, event).empty());
  CHECK(event.finish == FinishReason::kLength);
}

TEST_CASE("GrammarState_StopStringInForcedTokens_EndsThere") {
  Bed bed({{1, 2}, {3}, {4}, {5}}, {}, {.stop = {"<3>"}});
  Event event;
  CHECK(bed.take(1, 100, event) == std::vector<TokenId>{3});
  CHECK(event.finish == FinishReason::kStop);
  CHECK(event.stop_index == 0);
  CHECK(event.text == "<1>");
}

TEST_CASE("GrammarState_EndToken_IsTakenWhereTheGrammarMayEnd") {
  Bed bed({{1}, {2, 3}, {4}}, {.eos_ids = {kEos}, .may_end = {1}});
  Event event;
  CHECK(bed.take(1, 100, event).empty());
  CHECK(bed.take(kEos, 100, event).empty());
  CHECK(event.finish == FinishReason::kStop);
  CHECK(event.text.empty());
}

TEST_CASE("GrammarState_TokenThatIsNotAllowed_IsRefused") {
  for (const TokenId token : {5, kEos, 30, 1000}) {
    Bed bed({{1}, {2}}, {.eos_ids = {kEos}});
    BitmaskJob job = bed.state.job();
    job.matcher->fill_bitmask(job.bitmask);
    bed.state.take(job);
    Event event;
    CHECK_THROWS_WITH_AS(bed.state.advance(token, 100, bed.output, event), doctest::Contains("does not allow"), Error);
  }
}

}  // namespace
}  // namespace genai::engine
