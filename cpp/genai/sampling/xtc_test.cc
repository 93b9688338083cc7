#include "genai/sampling/xtc.h"

#include "genai/sampling/test_candidates.h"

#include <doctest/doctest.h>

namespace genai::sampling {
namespace {

using test::candidates_of;
using test::Ids;

Ids kept(Candidates candidates, float threshold) {
  apply_xtc(candidates, threshold);
  return candidates.ids;
}

TEST_CASE("Xtc_SeveralTopTokens_KeepsTheLeastLikelyOfThem") {
  CHECK(kept(candidates_of({0.05, 0.4, 0.2, 0.3, 0.05}), 0.1F) == Ids{0, 2, 4});
}

TEST_CASE("Xtc_ProbabilityAtTheThreshold_IsATopToken") {
  CHECK(kept(candidates_of({0.5, 0.25, 0.25}), 0.25F) == Ids{2});
}

TEST_CASE("Xtc_FewerThanTwoTopTokens_ChangesNothing") {
  CHECK(kept(candidates_of({0.9, 0.05, 0.05}), 0.1F) == Ids{0, 1, 2});
  CHECK(kept(candidates_of({0.25, 0.25, 0.25, 0.25}), 0.5F) == Ids{0, 1, 2, 3});
  CHECK(kept(candidates_of({1.0}), 0.1F) == Ids{0});
}

}  // namespace
}  // namespace genai::sampling
