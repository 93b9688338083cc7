#include "genai/sampling/dry.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace genai::sampling {
namespace {

std::vector<float> penalised(const std::vector<TokenId>& tokens, const DryOptions& options, std::size_t vocab = 10) {
  std::vector<float> row(vocab, 0.0F);
  DryScratch scratch;
  apply_dry(row, tokens, options, scratch);
  return row;
}

TEST_CASE("Dry_SuffixSeenBefore_PenalisesWhatFollowedIt") {
  // 1 2 3 [4] ... 1 2 3: a match of three, base^(3 - 2) * multiplier.
  const std::vector<float> row = penalised({1, 2, 3, 4, 5, 1, 2, 3}, {.multiplier = 1.0F, .base = 2.0F});

  CHECK(row == std::vector<float>{0, 0, 0, 0, -2, 0, 0, 0, 0, 0});
}

TEST_CASE("Dry_MatchShorterThanAllowed_IsFree") {
  CHECK(penalised({7, 3, 4, 5, 3}, {.multiplier = 1.0F, .base = 2.0F}) == std::vector<float>(10, 0.0F));
}

TEST_CASE("Dry_SeveralPlacesWithOneFollower_LongestCounts") {
  // 2 3 [4] is a match of two, 1 2 3 [4] of three.
  const std::vector<float> row = penalised({2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3}, {.multiplier = 0.5F, .base = 3.0F});

  CHECK(row[4] == -1.5F);  // 0.5 * 3^(3 - 2)
}

TEST_CASE("Dry_Breaker_EndsTheMatch") {
  const std::vector<TokenId> breakers = {2};
  const DryOptions options{.multiplier = 1.0F, .base = 2.0F, .allowed_length = 1, .sequence_breakers = breakers};

  CHECK(penalised({1, 2, 3, 4, 5, 1, 2, 3}, options)[4] == -1.0F);             // only the 3 matches
  CHECK(penalised({1, 2, 5, 1, 2}, options) == std::vector<float>(10, 0.0F));  // the suffix is a breaker
}

TEST_CASE("Dry_EnormousPenalty_StaysFinite") {
  const std::vector<TokenId> tokens(500, 1);

  const std::vector<float> row = penalised(tokens, {.multiplier = 1.0F, .base = 10.0F});

  CHECK(row[1] == std::numeric_limits<float>::lowest());
}

TEST_CASE("Dry_ForbiddenToken_StaysForbidden") {
  std::vector<float> row(10, -std::numeric_limits<float>::infinity());
  DryScratch scratch;

  apply_dry(row, std::vector<TokenId>{1, 2, 3, 1, 2}, {.multiplier = 1.0F}, scratch);

  CHECK(std::isinf(row[3]));
}

TEST_CASE("Dry_OneTokenOnly_ChangesNothing") {
  CHECK(penalised({1}, {.multiplier = 1.0F, .allowed_length = 1}) == std::vector<float>(10, 0.0F));
  CHECK(penalised({}, {.multiplier = 1.0F, .allowed_length = 1}) == std::vector<float>(10, 0.0F));
}

}  // namespace
}  // namespace genai::sampling
