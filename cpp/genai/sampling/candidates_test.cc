#include "genai/sampling/candidates.h"

#include "genai/base/random.h"
#include "genai/sampling/test_candidates.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace genai::sampling {
namespace {

using test::candidates_of;
using test::candidates_of_logits;
using test::Ids;

TEST_CASE("RankKey_AnyFloats_SortsByLogitThenId") {
  const float values[] = {
      std::numeric_limits<float>::infinity(), 3.5F, 1e-40F, 0.0F, -1e-40F, -2.0F, std::numeric_limits<float>::lowest(),
      -std::numeric_limits<float>::infinity()};
  for (std::size_t i = 0; i + 1 < std::size(values); ++i) {
    CHECK(rank_key(values[i], 9) < rank_key(values[i + 1], 0));
    CHECK(rank_key(values[i], 3) < rank_key(values[i], 4));
    CHECK(logit_of_key(rank_key(values[i], 7)) == values[i]);
  }
  CHECK(rank_key(-0.0F, 1) == rank_key(0.0F, 1));
}

TEST_CASE("KeepIf_SomePredicate_KeepsOrderAndDropsTail") {
  Candidates candidates = candidates_of({0.1, 0.2, 0.3, 0.4});
  candidates.tail_weight = 0.5;

  keep_if(candidates, [&](std::size_t i) { return candidates.ids[i] % 2 == 1; });

  CHECK(candidates.ids == Ids{1, 3});
  CHECK(candidates.logits.back() == 0.0F);
  CHECK(candidates.weights.back() == 1.0F);
  CHECK(candidates.tail_weight == 0.0);
}

TEST_CASE("Draw_NumberAtBorders_TakesTokensInIdOrder") {
  const Candidates candidates = candidates_of_logits(std::vector<float>{1.0F, 1.0F, 1.0F, 1.0F});

  CHECK(draw(candidates, 0.0) == 0);
  CHECK(draw(candidates, 0.2499) == 0);
  CHECK(draw(candidates, 0.25) == 1);
  CHECK(draw(candidates, 0.9999) == 3);
  CHECK(draw(candidates, 1.0 - 0x1p-53) == 3);
}

TEST_CASE("Draw_TokensWithoutWeight_AreNeverTaken") {
  const Candidates candidates = candidates_of_logits(std::vector<float>{-200.0F, 0.0F, -200.0F});

  CHECK(draw(candidates, 0.0) == 1);
  CHECK(draw(candidates, 1.0 - 0x1p-53) == 1);
}

TEST_CASE("Draw_MoreThanOneChunk_FollowsTheCumulativeSum") {
  const std::vector<float> row(1000, 2.0F);
  const Candidates candidates = candidates_of_logits(row);

  for (std::size_t i = 0; i < row.size(); ++i) CHECK(draw(candidates, (static_cast<double>(i) + 0.5) / 1000.0) == i);
}

}  // namespace
}  // namespace genai::sampling
