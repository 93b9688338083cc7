#include "genai/sampling/top_k.h"

#include "genai/sampling/test_candidates.h"

#include <doctest/doctest.h>

namespace genai::sampling {
namespace {

using test::candidates_of;
using test::Ids;

Ids kept(Candidates candidates, std::size_t k) {
  apply_top_k(candidates, k);
  return candidates.ids;
}

TEST_CASE("TopK_DistinctLogits_KeepsTheLargest") {
  CHECK(kept(candidates_of({0.1, 0.4, 0.2, 0.3}), 2) == Ids{1, 3});
}

TEST_CASE("TopK_TiesAtTheBorder_AllSurvive") {
  CHECK(kept(candidates_of({0.2, 0.4, 0.2, 0.2}), 2) == Ids{0, 1, 2, 3});
  CHECK(kept(candidates_of({0.2, 0.4, 0.2, 0.1}), 2) == Ids{0, 1, 2});
}

TEST_CASE("TopK_OffOrAboveSize_KeepsAll") {
  CHECK(kept(candidates_of({0.5, 0.5}), 0) == Ids{0, 1});
  CHECK(kept(candidates_of({0.5, 0.3}), 2) == Ids{0, 1});
  CHECK(kept(candidates_of({0.5, 0.3}), 1000) == Ids{0, 1});
}

}  // namespace
}  // namespace genai::sampling
