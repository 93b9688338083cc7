#include "genai/sampling/repetition_penalty.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

namespace genai::sampling {
namespace {

TokenCounts counts_of(const std::vector<TokenId>& tokens) {
  TokenCounts counts;
  counts.update(tokens, 1);
  return counts;
}

TEST_CASE("RepetitionPenalty_SeenTokens_AreDividedOrMultipliedOnce") {
  std::vector<float> row = {2.0F, -2.0F, 0.0F, 2.0F};

  apply_repetition_penalty(row, counts_of({0, 1, 2, 1, 1}), 2.0F);

  CHECK(row == std::vector<float>{1.0F, -4.0F, 0.0F, 2.0F});
}

TEST_CASE("RepetitionPenalty_ForbiddenToken_StaysForbidden") {
  const float forbidden = -std::numeric_limits<float>::infinity();
  for (const float penalty : {0.5F, 2.0F}) {
    std::vector<float> row = {forbidden, 1.0F};

    apply_repetition_penalty(row, counts_of({0}), penalty);

    CHECK(row[0] == forbidden);
  }
}

TEST_CASE("RepetitionPenalty_TokenOutsideTheRow_IsIgnored") {
  std::vector<float> row = {2.0F};

  apply_repetition_penalty(row, counts_of({7, -1}), 2.0F);

  CHECK(row == std::vector<float>{2.0F});
}

}  // namespace
}  // namespace genai::sampling
