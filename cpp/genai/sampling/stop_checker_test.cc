#include "genai/sampling/stop_checker.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace genai::sampling {
namespace {

struct Outcome {
  std::string text;
  std::optional<int> matched;
  bool operator==(const Outcome&) const = default;
};

/// All text that comes out; stops at a match, as the engine does.
Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces, bool include_stop = false) {
  StopChecker checker(stops, include_stop);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    const StopChecker::Output output = checker.append(piece);
    outcome.text += output.text;
    if (output.matched) {
      outcome.matched = output.matched;
      return outcome;
    }
  }
  outcome.text += checker.flush();
  return outcome;
}

/// The rule of the header by brute force: shortest prefix of the text that ends with a stop, longest stop there.
Outcome run_by_hand(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<int> best;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      const bool is_longer = !best || stops[i].size() > stops[static_cast<std::size_t>(*best)].size();
      if (text.substr(0, end).ends_with(stops[i]) && is_longer) best = static_cast<int>(i);
    }
    if (best) return {text.substr(0, end - stops[static_cast<std::size_t>(*best)].size()), best};
  }
  return {text, std::nullopt};
}

TEST_CASE("StopChecker_StopSpreadOverPieces_NeverLeaksAPart") {
  StopChecker checker({"END"}, false);

  CHECK(checker.append("ab E").text == "ab ");
  CHECK(checker.append("N").text.empty());
  const StopChecker::Output output = checker.append("Dx");

  CHECK(output.text.empty());
  CHECK(output.matched == 0);
}

TEST_CASE("StopChecker_TailTurnsOutHarmless_IsReleased") {
  StopChecker checker({"END"}, false);

  CHECK(checker.append("E").text.empty());
  CHECK(checker.append("x").text == "Ex");
  CHECK(checker.append("EN").text.empty());
  CHECK(checker.flush() == "EN");
}

TEST_CASE("StopChecker_StopInTheMiddleOfAPiece_CutsBeforeIt") {
  CHECK(run({"STOP"}, {"one STOP two"}) == Outcome{"one ", 0});
}

TEST_CASE("StopChecker_IncludeStop_EndsAfterTheStop") {
  CHECK(run({"STOP"}, {"one ST", "OP two"}, true) == Outcome{"one STOP", 0});
}

TEST_CASE("StopChecker_SeveralEndAtOnePlace_LongestWins") {
  CHECK(run({"b", "ab"}, {"xab"}) == Outcome{"x", 1});
  CHECK(run({"b", "ab"}, {"x", "a", "b"}) == Outcome{"x", 1});
}

TEST_CASE("StopChecker_OneStopBeginsAnother_FirstCompleteWinsInAnyCut") {
  CHECK(run({"abc", "ab"}, {"xabc"}) == Outcome{"x", 1});
  CHECK(run({"abc", "ab"}, {"xab", "c"}) == Outcome{"x", 1});
}

TEST_CASE("StopChecker_SeveralInTheText_EarliestWins") {
  CHECK(run({"zz", "END"}, {"a END b zz"}) == Outcome{"a ", 1});
}

TEST_CASE("StopChecker_OverlappingStart_FindsTheLaterOne") {
  CHECK(run({"aab"}, {"aa", "ab"}) == Outcome{"a", 0});
  CHECK(run({"abab c"}, {"abab", "ab c"}) == Outcome{"ab", 0});
}

TEST_CASE("StopChecker_EqualStops_FirstListedWins") {
  CHECK(run({"a", "a"}, {"xa"}) == Outcome{"x", 0});
}

TEST_CASE("StopChecker_NoStops_PassesEverythingOn") {
  StopChecker checker({}, false);

  CHECK(checker.append("anything").text == "anything");
  CHECK(checker.flush().empty());
}

TEST_CASE("StopChecker_EmptyStop_IsRefusedByPlace") {
  CHECK_THROWS_WITH_AS(StopChecker({"END", ""}, false), "stop[1] is \"\"; allowed: a string that is not empty", Error);
}

TEST_CASE("StopChecker_TextAfterAMatch_IsAnInternalError") {
  StopChecker checker({"a"}, false);
  checker.append("a");

  CHECK_THROWS_AS(checker.append("b"), Error);
  CHECK(checker.flush().empty());
}

TEST_CASE("StopChecker_MultiByteStop_NeverSplitsACharacter") {
  StopChecker checker({"\u00E9!"}, false);

  CHECK(checker.append("caf\u00E9").text == "caf");
  CHECK(checker.append(" \u00E8").text == "\u00E9 \u00E8");  // shares its first byte with the stop
}

TEST_CASE("StopChecker_AnyTextAndCut_GivesTheSameAndHoldsLittle") {
  std::mt19937 random(8);
  const auto random_text = [&](std::size_t size) {
    std::string text;
    for (std::size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    std::size_t longest = 0;
    for (std::size_t i = 1 + random() % 3; i > 0; --i) {
      stops.push_back(random_text(1 + random() % 5));
      longest = std::max(longest, stops.back().size());
    }
    const std::string text = random_text(random() % 25);
    std::vector<std::string> pieces;
    for (std::size_t start = 0; start < text.size();) {
      const std::size_t size = random() % 5;
      pieces.push_back(text.substr(start, size));
      start += size;
    }

    CHECK(run(stops, pieces) == run_by_hand(stops, text));

    StopChecker checker(stops, false);
    std::size_t in = 0;
    std::size_t out = 0;
    for (const std::string& piece : pieces) {
      const StopChecker::Output output = checker.append(piece);
      if (output.matched) break;
      in += piece.size();
      out += output.text.size();
      CHECK(in - out < longest);
    }
  }
}

}  // namespace
}  // namespace genai::sampling
