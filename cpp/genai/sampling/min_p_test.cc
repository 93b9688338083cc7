#include "genai/sampling/min_p.h"

#include "genai/sampling/test_candidates.h"

#include <doctest/doctest.h>

namespace genai::sampling {
namespace {

using test::candidates_of;
using test::Ids;

Ids kept(Candidates candidates, float min_p) {
  apply_min_p(candidates, min_p);
  return candidates.ids;
}

TEST_CASE("MinP_ProbabilityAtTheBorder_IsKept") {
  CHECK(kept(candidates_of({0.4, 0.2, 0.19, 0.21}), 0.5F) == Ids{0, 1, 3});
}

TEST_CASE("MinP_One_KeepsTheMostLikelyAndItsTies") {
  CHECK(kept(candidates_of({0.3, 0.4, 0.4}), 1.0F) == Ids{1, 2});
}

TEST_CASE("MinP_Zero_KeepsAll") {
  CHECK(kept(candidates_of({1.0, 1e-30}), 0.0F) == Ids{0, 1});
}

}  // namespace
}  // namespace genai::sampling
