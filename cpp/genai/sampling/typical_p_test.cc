#include "genai/sampling/typical_p.h"

#include "genai/sampling/test_candidates.h"

#include <doctest/doctest.h>

namespace genai::sampling {
namespace {

using test::candidates_of;
using test::Ids;

Ids kept(Candidates candidates, float p) {
  apply_typical_p(candidates, p);
  return candidates.ids;
}

// p = 1/2, 1/4, 1/8, 1/8: surprises 1, 2, 3, 3 bits; entropy 1.75 bits; distances 0.75, 0.25, 1.25, 1.25.
TEST_CASE("TypicalP_MostLikelyIsUntypical_IsLeftOut") {
  CHECK(kept(candidates_of({0.5, 0.25, 0.125, 0.125}), 0.2F) == Ids{1});
  CHECK(kept(candidates_of({0.5, 0.25, 0.125, 0.125}), 0.7F) == Ids{0, 1});
}

TEST_CASE("TypicalP_TiesAtTheBorder_AllSurvive") {
  CHECK(kept(candidates_of({0.5, 0.25, 0.125, 0.125}), 0.8F) == Ids{0, 1, 2, 3});
}

TEST_CASE("TypicalP_EqualTokens_AllSurvive") {
  CHECK(kept(candidates_of({0.25, 0.25, 0.25}), 0.1F) == Ids{0, 1, 2});
}

TEST_CASE("TypicalP_One_KeepsAll") {
  CHECK(kept(candidates_of({1.0, 1e-20}), 1.0F) == Ids{0, 1});
}

}  // namespace
}  // namespace genai::sampling
