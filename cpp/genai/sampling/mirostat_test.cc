#include "genai/sampling/mirostat.h"

#include "genai/sampling/test_candidates.h"

#include <doctest/doctest.h>

namespace genai::sampling {
namespace {

using test::candidates_of;
using test::Ids;

Ids kept(const Mirostat& mirostat, Candidates candidates) {
  mirostat.apply(candidates);
  return candidates.ids;
}

TEST_CASE("Mirostat_SurpriseAboveMu_IsCut") {
  const Mirostat mirostat(1.0F, 0.5F);  // mu = 2 bits: p >= 1/4

  CHECK(kept(mirostat, candidates_of({0.5, 0.25, 0.125, 0.125})) == Ids{0, 1});
}

TEST_CASE("Mirostat_NothingBelowMu_KeepsTheMostLikely") {
  const Mirostat mirostat(0.25F, 0.5F);  // mu = half a bit

  CHECK(kept(mirostat, candidates_of({0.2, 0.3, 0.3, 0.2})) == Ids{1});
}

TEST_CASE("Mirostat_ObservedSurprise_MovesMuAgainstTheError") {
  Mirostat mirostat(2.0F, 0.5F);

  mirostat.observe(3.0);
  CHECK(mirostat.mu() == 3.5);
  mirostat.observe(1.0);
  CHECK(mirostat.mu() == 4.0);
}

}  // namespace
}  // namespace genai::sampling
