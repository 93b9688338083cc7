#include "genai/embed/batches.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace genai::embed {
namespace {

using Groups = std::vector<std::vector<std::size_t>>;

Groups groups_of(const std::vector<std::size_t>& lengths, const BatchLimits& limits) {
  Groups groups;
  for (const Batch& batch : plan_batches(lengths, limits)) groups.push_back(batch.texts);
  return groups;
}

}  // namespace

TEST_CASE("PlanBatches_RaggedTexts_GroupsByLengthWithinTheBudget") {
  // Longest first: 9, 7 (18 padded) | 4, 4, 2 (12) | would be 16 with a fourth row.
  CHECK(groups_of({4, 9, 2, 7, 4}, {.max_tokens = 18}) == Groups{{1, 3}, {0, 4, 2}});
  CHECK(groups_of({4, 9, 2, 7, 4}, {.max_tokens = 17}) == Groups{{1}, {3, 0}, {4, 2}});
}

TEST_CASE("PlanBatches_TextAboveTheBudget_RunsAlone") {
  CHECK(groups_of({1, 50, 1}, {.max_tokens = 8}) == Groups{{1}, {0, 2}});
}

TEST_CASE("PlanBatches_EqualLengths_KeepTheirOrder") {
  CHECK(groups_of({3, 3, 3, 3}, {.max_tokens = 6}) == Groups{{0, 1}, {2, 3}});
}

TEST_CASE("PlanBatches_RowLimit_BoundsABatch") {
  CHECK(groups_of({2, 2, 2}, {.max_tokens = 100, .max_rows = 1}) == Groups{{0}, {1}, {2}});
}

TEST_CASE("PlanBatches_WithoutPadding_JoinsEqualLengthsOnly") {
  CHECK(groups_of({2, 5, 2, 5, 4}, {.max_tokens = 100, .equal_lengths = true}) == Groups{{1, 3}, {4}, {0, 2}});
}

TEST_CASE("PlanBatches_NoTexts_GiveNoBatches") {
  CHECK(plan_batches({}, {.max_tokens = 8}).empty());
}

TEST_CASE("PlanBatches_AnyLengths_HoldEachTextOnceWithinTheBudget") {
  std::uint64_t state = 1;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::size_t> lengths(static_cast<std::size_t>(round));
    for (std::size_t& length : lengths) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      length = 1 + static_cast<std::size_t>(state >> 58U);
    }
    std::vector<std::size_t> seen;
    for (const Batch& batch : plan_batches(lengths, {.max_tokens = 64})) {
      REQUIRE(!batch.texts.empty());
      REQUIRE((batch.texts.size() == 1 || batch.texts.size() * batch.longest <= 64));
      for (const std::size_t text : batch.texts) REQUIRE(lengths[text] <= batch.longest);
      REQUIRE(lengths[batch.texts.front()] == batch.longest);
      seen.insert(seen.end(), batch.texts.begin(), batch.texts.end());
    }
    std::sort(seen.begin(), seen.end());
    for (std::size_t i = 0; i < seen.size(); ++i) REQUIRE(seen[i] == i);
    REQUIRE(seen.size() == lengths.size());
  }
}

}  // namespace genai::embed
