#include "genai/engine/beam_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace genai::engine {
namespace {

BeamRow row(std::vector<std::pair<TokenId, float>> candidates) {
  BeamRow made;
  for (const auto& [token, logprob] : candidates) made.candidates.push_back({.token = token, .logprob = logprob});
  return made;
}

constexpr TokenId kEnd = 9;
bool ends(std::size_t /*parent*/, TokenId token) {
  return token == kEnd;
}

TEST_CASE("BeamSearch_FirstStep_TakesTheBestTokensOfTheOneRow") {
  BeamSearch search({.num_beams = 2, .num_end_ids = 1, .max_new_tokens = 4});

  const auto next = search.advance(std::vector{row({{3, -0.5F}, {1, -1.0F}, {2, -2.0F}})}, ends);

  REQUIRE(next.size() == 2);
  CHECK(next[0].token == 3);
  CHECK(next[1].token == 1);
  CHECK(search.running()[1].score == -1.0F);
  CHECK_FALSE(search.done());
}

TEST_CASE("BeamSearch_EqualSums_PreferTheLowerBeamThenTheLowerToken") {
  BeamSearch search({.num_beams = 2, .num_end_ids = 1, .max_new_tokens = 4});
  search.advance(std::vector{row({{4, -1.0F}, {5, -1.0F}})}, ends);

  const auto next = search.advance(std::vector{row({{7, -1.0F}, {6, -1.0F}}), row({{0, -1.0F}})}, ends);

  REQUIRE(next.size() == 2);
  CHECK(next[0].parent == 0);
  CHECK(next[0].token == 6);
  CHECK(next[1].token == 7);
}

TEST_CASE("BeamSearch_EndAmongTheBest_IsFinishedAndAnotherRunsInItsPlace") {
  BeamSearch search({.num_beams = 2, .length_penalty = 1.0F, .num_end_ids = 1, .max_new_tokens = 4});
  search.advance(std::vector{row({{1, -1.0F}, {2, -1.5F}})}, ends);

  const auto next =
      search.advance(std::vector{row({{kEnd, -0.1F}, {3, -1.0F}}), row({{4, -2.0F}, {kEnd, -3.0F}})}, ends);

  REQUIRE(next.size() == 2);
  CHECK(next[0].token == 3);
  CHECK(next[1].token == 4);
  const std::vector<BeamPath> finished = search.finished(5);
  REQUIRE(finished.size() == 1);  // the second end is not among the best two continuations
  CHECK(finished[0].tokens == std::vector<TokenId>{1, kEnd});
  CHECK(finished[0].score == doctest::Approx(-1.1 / 2));
}

/// Two beams are finished after the second step with sums -1.1 and -1.2, and the best that runs has -1.3.
BeamSearch two_finished(EarlyStopping early_stopping, float length_penalty) {
  BeamSearch search({.num_beams = 2,
                     .length_penalty = length_penalty,
                     .early_stopping = early_stopping,
                     .num_end_ids = 1,
                     .max_new_tokens = 10});
  search.advance(std::vector{row({{1, -1.0F}, {2, -1.0F}})}, ends);
  search.advance(std::vector{row({{kEnd, -0.1F}, {3, -0.3F}}), row({{kEnd, -0.2F}, {4, -0.4F}})}, ends);
  return search;
}

TEST_CASE("BeamSearch_WithEnoughFinished_StopsByItsMode") {
  CHECK(two_finished(EarlyStopping::kFirst, 1.0F).done());
  CHECK(two_finished(EarlyStopping::kHeuristic, 1.0F).done());  // -1.3 / 2 < -1.2 / 2
  CHECK(two_finished(EarlyStopping::kHeuristic, 0.0F).done());
  CHECK_FALSE(two_finished(EarlyStopping::kNever, 1.0F).done());  // -1.3 / 10 > -1.2 / 2
  CHECK(two_finished(EarlyStopping::kNever, 0.0F).done());        // -1.3 < -1.2, at any length
}

TEST_CASE("BeamSearch_ForbiddenContinuations_LeaveFewerBeams") {
  BeamSearch search({.num_beams = 3, .num_end_ids = 1, .max_new_tokens = 2});
  CHECK(search.advance(std::vector{row({{5, 0.0F}})}, ends).size() == 1);
  CHECK_FALSE(search.done());

  CHECK(search.advance(std::vector{row({})}, ends).empty());

  CHECK(search.done());
  CHECK(search.finished(3).empty());
  CHECK(search.so_far(3).empty());
}

TEST_CASE("BeamSearch_GivenUp_ListsFinishedThenRunningWithNormalisedScores") {
  const BeamSearch search = two_finished(EarlyStopping::kNever, 1.0F);

  const std::vector<BeamPath> paths = search.so_far(3);

  REQUIRE(paths.size() == 3);
  CHECK(paths[0].tokens == std::vector<TokenId>{1, kEnd});
  CHECK(paths[2].tokens == std::vector<TokenId>{1, 3});
  CHECK(paths[2].score == doctest::Approx(-1.3 / 2));
}

TEST_CASE("BeamSearch_WithLogprobs_KeepsThoseOfEachToken") {
  BeamSearch search({.num_beams = 1, .max_new_tokens = 2, .keeps_logprobs = true});
  BeamRow first = row({{1, -1.0F}});
  first.candidates[0].raw_logprob = -0.25F;
  first.top = {{2, -0.125F}};
  search.advance(std::vector{first}, ends);
  search.advance(std::vector{row({{3, -1.0F}})}, ends);

  const std::vector<BeamPath> paths = search.finished(1);

  REQUIRE(paths.size() == 1);
  REQUIRE(paths[0].logprobs.size() == 2);
  CHECK(paths[0].logprobs[0].token == 1);
  CHECK(paths[0].logprobs[0].logprob == -0.25F);
  CHECK(paths[0].logprobs[0].top[0].token == 2);
}

/// All sequences of `length` over `vocab` tokens of a chain whose log-probabilities depend on the last token.
std::vector<BeamPath> every_path(const std::vector<std::vector<float>>& chain, std::size_t length) {
  std::vector<BeamPath> paths(1);
  for (std::size_t i = 0; i < length; ++i) {
    std::vector<BeamPath> longer;
    for (const BeamPath& path : paths) {
      const std::vector<float>& logprobs =
          chain[path.tokens.empty() ? 0 : static_cast<std::size_t>(path.tokens.back())];
      for (std::size_t token = 0; token < logprobs.size(); ++token) {
        longer.push_back(path);
        longer.back().tokens.push_back(static_cast<TokenId>(token));
        longer.back().score += logprobs[token];
      }
    }
    paths = std::move(longer);
  }
  std::ranges::sort(paths, std::greater{}, &BeamPath::score);
  return paths;
}

TEST_CASE("BeamSearch_AsWideAsAllSequences_FindsTheBestOfThem") {
  const std::vector<std::vector<float>> chain = {{-0.7F, -1.3F, -1.75F}, {-2.3F, -0.2F, -2.4F}, {-0.4F, -1.6F, -2.2F}};
  constexpr std::size_t kLength = 3;
  BeamSearch search({.num_beams = 27, .length_penalty = 0.0F, .max_new_tokens = kLength});
  while (!search.done()) {
    std::vector<BeamRow> rows;
    for (const BeamPath& path : search.running()) {
      const std::vector<float>& logprobs =
          chain[path.tokens.empty() ? 0 : static_cast<std::size_t>(path.tokens.back())];
      BeamRow& made = rows.emplace_back();
      for (TokenId token = 0; token < 3; ++token) {
        made.candidates.push_back({.token = token, .logprob = logprobs[static_cast<std::size_t>(token)]});
      }
    }
    search.advance(rows, [](std::size_t, TokenId) { return false; });
  }

  const std::vector<BeamPath> expected = every_path(chain, kLength);
  const std::vector<BeamPath> found = search.finished(5);
  REQUIRE(found.size() == 5);
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i].score == doctest::Approx(expected[i].score));
  CHECK(found[0].tokens == expected[0].tokens);
}

}  // namespace
}  // namespace genai::engine
