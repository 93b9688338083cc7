#include "genai/sampling/bad_words.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace genai::sampling {
namespace {

bool is_banned(TokenId token, const std::vector<TokenId>& tokens, const std::vector<TokenId>& word) {
  std::vector<float> row(10, 0.0F);
  ban_bad_words(row, tokens, std::vector<std::vector<TokenId>>{word});
  return std::isinf(row[static_cast<std::size_t>(token)]);
}

TEST_CASE("BadWords_AllButTheLastIdStand_BansTheLast") {
  CHECK(is_banned(3, {5, 1, 2}, {1, 2, 3}));
  CHECK(is_banned(3, {1, 2}, {1, 2, 3}));
  CHECK_FALSE(is_banned(3, {2, 1}, {1, 2, 3}));
  CHECK_FALSE(is_banned(3, {2}, {1, 2, 3}));
}

TEST_CASE("BadWords_OneId_IsAlwaysBanned") {
  CHECK(is_banned(4, {}, {4}));
  CHECK(is_banned(4, {1}, {4}));
}

TEST_CASE("BadWords_LastIdOutsideTheRow_IsIgnored") {
  CHECK_FALSE(is_banned(4, {1}, {1, 77}));
}

}  // namespace
}  // namespace genai::sampling
