#include "genai/runner/attention_mask.h"

#include <doctest/doctest.h>

#include <random>

namespace genai::runner {
namespace {

using Row = AttentionMask::Row;

/// The mask by its definition.
std::vector<int> expected_elements(const std::vector<Row>& rows, std::int64_t width) {
  std::vector<int> elements;
  for (const Row& row : rows) {
    for (std::int64_t column = 0; column < width; ++column) {
      elements.push_back(column >= row.first && column < row.end ? 1 : 0);
    }
  }
  return elements;
}

}  // namespace

TEST_CASE("Mask_OneRowAllOnes_GrowsWithoutRows") {
  AttentionMask mask(DType::kInt64);
  for (const std::int64_t width : {1, 2, 3, 100, 7}) {
    const std::vector<Row> rows = {{0, width}};

    CHECK(mask.set(rows, width));
    CHECK(mask.elements() == std::vector<int>(static_cast<std::size_t>(width), 1));
    CHECK_FALSE(mask.set(rows, width));
  }
}

TEST_CASE("Mask_RowsGrowInsideTheWidth_NeedsNoNewBinding") {
  AttentionMask mask(DType::kInt32);
  std::vector<Row> rows = {{0, 3}, {0, 5}};
  CHECK(mask.set(rows, 8));

  rows = {{0, 4}, {0, 6}};

  CHECK_FALSE(mask.set(rows, 8));
  CHECK(mask.elements() == expected_elements(rows, 8));
}

TEST_CASE("Mask_AnyChangeOfRows_EqualsAFreshMask") {
  std::mt19937 random(7);
  for (const DType dtype : {DType::kInt64, DType::kInt32, DType::kFloat32, DType::kBool, DType::kFloat16}) {
    AttentionMask mask(dtype);
    for (int step = 0; step < 500; ++step) {
      const std::int64_t width = 1 + static_cast<std::int64_t>(random() % 3) * 4;
      std::vector<Row> rows(1 + random() % 3);
      for (Row& row : rows) {
        row.first = static_cast<std::int64_t>(random()) % (width + 1);
        row.end = row.first + static_cast<std::int64_t>(random()) % (width - row.first + 1);
      }

      mask.set(rows, width);

      REQUIRE(mask.elements() == expected_elements(rows, width));
    }
  }
}

}  // namespace genai::runner
