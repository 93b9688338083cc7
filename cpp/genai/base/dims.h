#pragma once

#include "genai/base/error.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace genai {

/// Dimensions of a tensor, kept inline so that making one allocates nothing. Rank 0 is a scalar.
class Dims {
 public:
  static constexpr std::size_t kMaxRank = 8;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> dims) : Dims(std::span(dims.begin(), dims.size())) {}
  explicit Dims(std::span<const std::int64_t> dims) : rank_(dims.size()) {
    check(rank_ <= kMaxRank, "a tensor has more than 8 dimensions");
    std::copy(dims.begin(), dims.end(), dims_.begin());
  }

  std::size_t rank() const { return rank_; }
  std::int64_t operator[](std::size_t axis) const { return dims_[axis]; }
  std::int64_t& operator[](std::size_t axis) { return dims_[axis]; }
  const std::int64_t* data() const { return dims_.data(); }
  std::span<const std::int64_t> span() const { return {dims_.data(), rank_}; }

  /// Number of elements; 1 for a scalar.
  std::int64_t num_elements() const { return product(0, rank_); }
  /// Product of dimensions `first` up to, not including, `last`.
  std::int64_t product(std::size_t first, std::size_t last) const {
    std::int64_t result = 1;
    for (std::size_t axis = first; axis < last; ++axis) result *= dims_[axis];
    return result;
  }

  /// As in messages: "[1,3,256,64]".
  std::string text() const {
    std::string result = "[";
    for (std::size_t axis = 0; axis < rank_; ++axis) {
      result += (axis == 0 ? "" : ",") + std::to_string(dims_[axis]);
    }
    return result + "]";
  }

  friend bool operator==(const Dims& left, const Dims& right) {
    return std::equal(left.span().begin(), left.span().end(), right.span().begin(), right.span().end());
  }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  std::size_t rank_ = 0;
};

}  // namespace genai
