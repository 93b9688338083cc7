#include "genai/sampling/no_repeat_ngram.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

namespace genai::sampling {
namespace {

std::set<TokenId> banned(const std::vector<TokenId>& tokens, std::size_t size) {
  std::vector<float> row(10, 0.0F);
  ban_repeated_ngrams(row, tokens, size);
  std::set<TokenId> out;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (std::isinf(row[i])) out.insert(static_cast<TokenId>(i));
  }
  return out;
}

TEST_CASE("NoRepeatNgram_SuffixSeenBefore_BansItsFollowers") {
  CHECK(banned({1, 2, 3, 1, 2, 4, 1, 2}, 3) == std::set<TokenId>{3, 4});
  CHECK(banned({1, 2, 3, 5, 2}, 2) == std::set<TokenId>{3});
}

TEST_CASE("NoRepeatNgram_SizeOne_BansEveryTokenSeen") {
  CHECK(banned({1, 2, 1}, 1) == std::set<TokenId>{1, 2});
}

TEST_CASE("NoRepeatNgram_OverlappingRepeat_IsBanned") {
  CHECK(banned({1, 1}, 2) == std::set<TokenId>{1});
}

TEST_CASE("NoRepeatNgram_OffOrTooShort_BansNothing") {
  CHECK(banned({1, 1, 1}, 0).empty());
  CHECK(banned({1, 1}, 3).empty());
  CHECK(banned({}, 1).empty());
}

TEST_CASE("NoRepeatNgram_FollowerOutsideTheRow_IsIgnored") {
  CHECK(banned({1, 99, 1}, 2).empty());
}

}  // namespace
}  // namespace genai::sampling
