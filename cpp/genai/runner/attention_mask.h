#pragma once

#include "genai/base/dtype.h"
#include "genai/ort/value.h"

#include <cstdint>
#include <span>
#include <vector>

namespace genai::runner {

/// The attention mask input, [rows, width] of ones and zeros, kept between steps: a step that adds a token a row writes
/// one element a row. One thread.
class AttentionMask {
 public:
  /// Columns [first, end) of a row are 1, the others 0.
  struct Row {
    std::int64_t first = 0;
    std::int64_t end = 0;
    friend bool operator==(const Row&, const Row&) = default;
  };

  /// dtype: int64, int32, float32 or bool.
  explicit AttentionMask(DType dtype) : dtype_(dtype) {}

  /// Sets the mask; true when its memory or dims changed, so that value() must be bound again. Requires:
  /// 0 <= first <= end <= width. Cost: O(elements that change), and O(rows * width) when the number of rows or the
  /// width changes; O(1) amortised for a single row that is all ones.
  bool set(std::span<const Row> rows, std::int64_t width);

  /// A view that is valid until the next set() that returns true.
  ort::Value value(const ort::Library& library) const;

  /// Elements as integers, row by row. For tests.
  std::vector<int> elements() const;

 private:
  bool set_all_ones(std::int64_t width);
  void write(std::int64_t row, std::int64_t first, std::int64_t end, int element);

  DType dtype_;
  std::vector<Row> rows_;  ///< what elements_ now shows
  std::int64_t width_ = 0;
  bool all_ones_ = false;            ///< the value is the first width_ elements of ones_
  std::vector<std::byte> elements_;  ///< [rows, width]
  std::vector<std::byte> ones_;      ///< all 1, at least width_ elements when all_ones_
};

}  // namespace genai::runner
