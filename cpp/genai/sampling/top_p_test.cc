#include "genai/sampling/top_p.h"

#include "genai/sampling/test_candidates.h"

#include <doctest/doctest.h>

namespace genai::sampling {
namespace {

using test::candidates_of;
using test::Ids;

Ids kept(Candidates candidates, float p) {
  apply_top_p(candidates, p);
  return candidates.ids;
}

TEST_CASE("TopP_SumReachedExactly_KeepsNoMore") {
  CHECK(kept(candidates_of({0.125, 0.5, 0.125, 0.25}), 0.5F) == Ids{1});
  CHECK(kept(candidates_of({0.125, 0.5, 0.125, 0.25}), 0.75F) == Ids{1, 3});
  CHECK(kept(candidates_of({0.125, 0.5, 0.125, 0.25}), 0.76F) == Ids{0, 1, 3});
}

TEST_CASE("TopP_TiesAtTheBorder_KeepsLowerIds") {
  CHECK(kept(candidates_of({0.25, 0.25, 0.25, 0.25}), 0.5F) == Ids{0, 1});
}

TEST_CASE("TopP_DecimalThatFloatRoundsUp_CountsAsReached") {
  CHECK(kept(candidates_of({0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}), 0.3F) == Ids{0, 1, 2});
}

TEST_CASE("TopP_VerySmall_KeepsTheMostLikely") {
  CHECK(kept(candidates_of({0.1, 0.1, 0.8}), 1e-9F) == Ids{2});
}

TEST_CASE("TopP_One_KeepsAll") {
  CHECK(kept(candidates_of({1.0, 1e-30, 0.0, 1e-12}), 1.0F) == Ids{0, 1, 3});
}

TEST_CASE("TopP_UnlistedTail_CountsInTheSum") {
  Candidates candidates = candidates_of({0.5, 0.25});
  candidates.tail_weight = 0.5;  // the listed two weigh 1 and 0.5: probabilities 0.5, 0.25 and a tail of 0.25

  apply_top_p(candidates, 0.5F);

  CHECK(candidates.ids == Ids{0});
  CHECK(candidates.tail_weight == 0.0);
}

}  // namespace
}  // namespace genai::sampling
