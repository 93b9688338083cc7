#include "genai/sampling/top_a.h"

#include "genai/sampling/test_candidates.h"

#include <doctest/doctest.h>

namespace genai::sampling {
namespace {

using test::candidates_of;
using test::Ids;

Ids kept(Candidates candidates, float a) {
  apply_top_a(candidates, a);
  return candidates.ids;
}

TEST_CASE("TopA_ProbabilityAtTheBorder_IsKept") {
  // 0.5 * 0.5^2 = 0.125
  CHECK(kept(candidates_of({0.5, 0.25, 0.125, 0.0625, 0.0625}), 0.5F) == Ids{0, 1, 2});
}

TEST_CASE("TopA_FlatRow_KeepsMoreThanPeakedRow") {
  CHECK(kept(candidates_of({0.3, 0.3, 0.2, 0.2}), 1.0F) == Ids{0, 1, 2, 3});
  CHECK(kept(candidates_of({0.9, 0.05, 0.05}), 1.0F) == Ids{0});
}

TEST_CASE("TopA_ZeroOrOneToken_KeepsAll") {
  CHECK(kept(candidates_of({1.0, 1e-30}), 0.0F) == Ids{0, 1});
  CHECK(kept(candidates_of({1.0}), 1.0F) == Ids{0});
}

}  // namespace
}  // namespace genai::sampling
