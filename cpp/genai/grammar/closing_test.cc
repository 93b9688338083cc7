#include "genai/grammar/closing.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace genai::grammar {
namespace {

/// A vocabulary of texts.
TokenTable table_of(const std::vector<std::string>& texts, const std::vector<std::string>& special = {}) {
  TokenTable table;
  for (const std::string& text : texts) {
    table.bytes.push_back(text);
    table.kinds.push_back(TokenTable::Kind::kText);
  }
  for (const std::string& text : special) {
    table.bytes.push_back(text);
    table.kinds.push_back(TokenTable::Kind::kSpecial);
  }
  return table;
}

/// States, each with the tokens that lead to others; it may end in those of `ends`.
struct Automaton {
  struct Way {
    TokenId token;
    std::size_t to;
  };
  std::vector<std::vector<Way>> states;
  std::vector<std::size_t> ends;
};

class AutomatonMatcher final : public TokenMatcher {
 public:
  explicit AutomatonMatcher(const Automaton& automaton, std::int64_t* num_bitmasks = nullptr)
      : automaton_(automaton), num_bitmasks_(num_bitmasks) {}

  void fill_bitmask(std::span<std::uint32_t> bitmask) override {
    if (num_bitmasks_ != nullptr) ++*num_bitmasks_;
    std::ranges::fill(bitmask, 0U);
    for (const auto& way : automaton_.states[state_]) {
      bitmask[static_cast<std::size_t>(way.token) / 32] |= 1U << (way.token % 32);
    }
  }
  void accept(std::span<const TokenId> tokens) override {
    for (const TokenId token : tokens) {
      const auto& ways = automaton_.states[state_];
      const auto way = std::ranges::find(ways, token, &Automaton::Way::token);
      if (way == ways.end()) throw Error(ErrorCode::kInvalidArgument, "not allowed");
      state_ = way->to;
    }
  }
  std::unique_ptr<TokenMatcher> clone() const override { return std::make_unique<AutomatonMatcher>(*this); }
  void rollback(std::int64_t /*count*/) override {}
  std::vector<TokenId> forced_tokens() override { return {}; }
  bool can_end() override { return std::ranges::find(automaton_.ends, state_) != automaton_.ends.end(); }
  bool must_end() override { return can_end() && automaton_.states[state_].empty(); }

 private:
  const Automaton& automaton_;
  std::int64_t* num_bitmasks_;
  std::size_t state_ = 0;
};

std::optional<std::vector<TokenId>> end_of(const TokenTable& table, const Automaton& automaton,
                                           std::int64_t max_tokens = 50, std::int64_t good_tokens = 12) {
  return Closing(table, std::ssize(table.bytes))
      .find_end(AutomatonMatcher(automaton), {.max_tokens = max_tokens, .good_tokens = good_tokens});
}

using Tokens = std::vector<TokenId>;

}  // namespace

TEST_CASE("Closing_MayEndAtOnce_NeedsNothing") {
  const TokenTable table = table_of({"a", "b"});

  CHECK(end_of(table, {{{{0, 0}}}, {0}}, 0) == Tokens{});
}

TEST_CASE("Closing_InsideOfAString_QuotesAndBracketsComeFirst") {
  // 0: in a string; 1: behind it; 2: behind the object
  const TokenTable table = table_of({"a", "z", "}", "\"", "\"}", ",", "#"});

  const Automaton whole{{{{0, 0}, {1, 0}, {2, 0}, {3, 1}, {4, 2}, {5, 0}, {6, 0}}, {{2, 2}, {5, 0}}, {}}, {2}};
  CHECK(end_of(table, whole) == Tokens{4});
  const Automaton apart{{{{0, 0}, {1, 0}, {2, 0}, {3, 1}, {5, 0}, {6, 0}}, {{2, 2}, {5, 0}}, {}}, {2}};
  CHECK(end_of(table, apart) == Tokens{3, 2});
}

TEST_CASE("Closing_Values_TheShortestAreTaken") {
  // 0: a value; 1: a string; 2: an object; 3: the end
  const TokenTable table = table_of({"{", "\"", "7", " ", "x"});

  CHECK(end_of(table, {{{{0, 2}, {2, 3}, {3, 0}}, {}, {{4, 3}}, {}}, {3}}) == Tokens{2});
  CHECK(end_of(table, {{{{0, 2}, {3, 0}}, {}, {{3, 2}, {4, 3}}, {}}, {3}}) == Tokens{0, 4});
}

TEST_CASE("Closing_LettersThatLeadAround_AreLeftForOthers") {
  const TokenTable table = table_of({"a", "b", "c"});

  CHECK(end_of(table, {{{{0, 1}, {2, 2}}, {{1, 0}}, {}}, {2}}) == Tokens{0, 1, 2});  // (ab)*c
}

TEST_CASE("Closing_FirstWalkIsTooLong_OthersAreTried") {
  // "aa" first, as it is longer, and then much more; or "b" and the end.
  const TokenTable table = table_of({"aa", "b", "c"});
  const Automaton automaton{{{{0, 1}, {1, 5}}, {{2, 2}}, {{2, 3}}, {{2, 4}}, {{2, 5}}, {}}, {5}};

  CHECK(end_of(table, automaton) == Tokens{0, 2, 2, 2, 2});
  CHECK(end_of(table, automaton, 4) == Tokens{1});
  CHECK(end_of(table, automaton, 1) == Tokens{1});
  CHECK_FALSE(end_of(table, automaton, 0));
  CHECK(end_of(table, automaton, 50, 4) == Tokens{1});
}

TEST_CASE("Closing_FreeText_EndsWithItsMark") {
  const Automaton thought{{{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 1}}, {}}, {1}};

  CHECK(end_of(table_of({"z", "\"", "}", "#"}, {"</think>"}), thought) == Tokens{4});
  CHECK(end_of(table_of({"z", "\"", "}", "#", "</think>"}), thought) == Tokens{4});  // a token like others
}

TEST_CASE("Closing_NoEnd_IsNone") {
  const TokenTable table = table_of({"a", "b"});

  CHECK_FALSE(end_of(table, {{{{0, 0}, {1, 0}}}, {}}, 300));
  CHECK_FALSE(end_of(table, {{{}}, {}}));
}

TEST_CASE("Closing_NoEnd_CostsTheFirstWalkAndTheEffort") {
  const TokenTable table = table_of({"a", "b"});
  const Automaton automaton{{{{0, 0}, {1, 0}}}, {}};
  for (const std::int64_t effort : {std::int64_t{0}, std::int64_t{16}, Closing::kThorough}) {
    std::int64_t num_bitmasks = 0;
    const Closing closing(table, std::ssize(table.bytes));

    CHECK_FALSE(closing.find_end(AutomatonMatcher(automaton, &num_bitmasks), {.max_tokens = 200, .effort = effort}));

    CHECK(num_bitmasks >= 200);
    CHECK(num_bitmasks <= 200 + effort + 200);  // the last walk of the effort may be a long one
  }
}

TEST_CASE("EndsAfter_TellsWhetherTheGrammarMayEndThere") {
  const Automaton automaton{{{{0, 1}}, {{1, 2}}, {}}, {2}};
  const AutomatonMatcher matcher(automaton);

  CHECK(ends_after(matcher, Tokens{0, 1}));
  CHECK_FALSE(ends_after(matcher, Tokens{0}));
  CHECK_FALSE(ends_after(matcher, Tokens{1}));
  CHECK_FALSE(ends_after(matcher, Tokens{}));
}

}  // namespace genai::grammar
