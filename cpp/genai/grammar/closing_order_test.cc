#include "genai/grammar/closing_order.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace genai::grammar {
namespace {

TokenTable table_of(const std::vector<std::string>& texts) {
  TokenTable table;
  table.bytes = texts;
  table.kinds.assign(texts.size(), TokenTable::Kind::kText);
  return table;
}

ClosingOrder order_of(const std::vector<std::string>& texts) {
  return ClosingOrder(table_of(texts), std::ssize(texts));
}

/// The order in which the tokens of a bitmask are taken when each may be taken once.
std::vector<TokenId> sorted(const ClosingOrder& order, std::uint32_t bitmask) {
  std::vector<TokenId> out;
  while (bitmask != 0) {
    const TokenId best = order.best({&bitmask, 1}, {}).value();
    out.push_back(best);
    bitmask &= ~(1U << best);
  }
  return out;
}

}  // namespace

TEST_CASE("ClosingOrder_InStructure_ClosesBeforeItOpens") {
  const ClosingOrder order = order_of({"[", "  ", "0", "\"", "}", "}}", "4", "\"\"", "null", ",", "and", "é"});

  CHECK(sorted(order, 0xFFFU) == std::vector<TokenId>{5, 4, 7, 3, 9, 6, 2, 8, 0, 10, 11, 1});
}

TEST_CASE("ClosingOrder_WhereAnythingMayCome_BracketsAreLetters") {
  const ClosingOrder order = order_of({"z", "}", "\"", "letters", "\"}", " ", "("});

  CHECK(order.best(std::vector<std::uint32_t>{0b1111111U}, {}) == 4);
  CHECK(order.best(std::vector<std::uint32_t>{0b1101011U}, {}) == 3);  // no quote: long tokens come first
  CHECK(order.best(std::vector<std::uint32_t>{0b0101011U}, {}) == 1);  // no other sign: the bracket is none of the text
  CHECK(order.best(std::vector<std::uint32_t>{0b0000010U}, {}) == 1);
}

TEST_CASE("ClosingOrder_TriedLetters_AreTakenAgainOnlyWhereNothingElseIsAllowed") {
  const ClosingOrder order = order_of({"a", "b", "}"});
  const std::uint32_t letters = 0b011U;
  const std::uint32_t bracket = 0b100U;

  CHECK(order.best({&letters, 1}, std::vector<TokenId>{0}) == 1);
  CHECK(order.best({&letters, 1}, std::vector<TokenId>{0, 1}) == 0);
  CHECK(order.best({&bracket, 1}, std::vector<TokenId>{2}) == 2);
}

TEST_CASE("ClosingOrder_Words_EndAfterTheFirst") {
  const ClosingOrder order = order_of({"z", "abc", " ", "."});
  const std::uint32_t all = 0b1111U;

  CHECK(order.best({&all, 1}, {}) == 3);
  CHECK(order.best({&all, 1}, std::vector<TokenId>{3}) == 1);
  CHECK(order.best({&all, 1}, std::vector<TokenId>{3, 1}) == 2);
  CHECK(order.best({&all, 1}, std::vector<TokenId>{3, 1, 2}) == 0);
}

TEST_CASE("ClosingOrder_Digits_GiveWayToLettersAndAreAllTriedWithoutThem") {
  const ClosingOrder order = order_of({"1", "2", "3", "4", "W"});
  const std::uint32_t all = 0b11111U;
  const std::uint32_t digits = 0b01111U;

  CHECK(order.best({&all, 1}, std::vector<TokenId>{0, 1}) == 2);
  CHECK(order.best({&all, 1}, std::vector<TokenId>{0, 1, 2}) == 4);
  CHECK(order.best({&digits, 1}, std::vector<TokenId>{0, 1, 2}) == 3);
}

TEST_CASE("ClosingOrder_Others_AreFewAndHelp") {
  const ClosingOrder order = order_of({"a", "bb", " ", "\n", "[/INST]", "}"});
  const std::uint32_t all = 0b111111U;
  const std::uint32_t none = 0U;

  CHECK(order.others({&all, 1}, 5, 9) == std::vector<TokenId>{4, 2, 1, 0});
  CHECK(order.others({&all, 1}, 5, 2) == std::vector<TokenId>{4, 2});
  CHECK(order.others({&none, 1}, 5, 9).empty());
  CHECK_FALSE(order.best({&none, 1}, {}));
}

TEST_CASE("ClosingOrder_TokensThatTheModelDoesNotKnow_AreNeverTaken") {
  const ClosingOrder order(table_of({"a", "}", "\""}), 1);
  const std::uint32_t all = 0b111U;
  const std::uint32_t unknown = 0b110U;

  CHECK(order.best({&all, 1}, {}) == 0);
  CHECK(order.others({&all, 1}, 0, 9).empty());
  CHECK_FALSE(order.best({&unknown, 1}, {}));
}

}  // namespace genai::grammar
