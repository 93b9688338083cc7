#include "genai/sampling/row_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace genai::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

std::vector<float> random_row(std::size_t size) {
  std::mt19937 random(static_cast<std::uint32_t>(size));
  std::vector<float> row(size);
  for (float& logit : row) {
    logit = static_cast<float>(random() % 500) / 16.0F;
    if (random() % 9 == 0) logit = kForbidden;
    if (random() % 31 == 0) logit = std::numeric_limits<float>::quiet_NaN();
  }
  return row;
}

TEST_CASE("RowIndex_CollectAtThreshold_ListsExactlyThoseTokens") {
  RowIndex index;
  Candidates candidates;
  for (const std::size_t size : {1U, 63U, 64U, 65U, 1000U}) {
    const std::vector<float> row = random_row(size);
    index.read(row);
    for (const float threshold : {std::numeric_limits<float>::lowest(), 10.0F, 31.0F, 99.0F}) {
      std::vector<TokenId> want;
      for (std::size_t i = 0; i < size; ++i) {
        if (row[i] >= threshold) want.push_back(static_cast<TokenId>(i));
      }

      index.collect(threshold, candidates);

      CHECK(candidates.ids == want);
    }
  }
}

TEST_CASE("RowIndex_ReachedBy_IsReachedByAtLeastK") {
  RowIndex index;
  Candidates candidates;
  const std::vector<float> row = random_row(5000);
  index.read(row);
  for (const std::size_t k : {1U, 2U, 50U, 78U, 79U, 80U, 4000U}) {
    index.collect(index.reached_by(k), candidates);

    CHECK(candidates.size() >= std::min<std::size_t>(k, 4000));
  }
  index.collect(index.reached_by(1), candidates);
  CHECK(candidates.logits.front() == index.scan().max);
}

}  // namespace
}  // namespace genai::sampling
