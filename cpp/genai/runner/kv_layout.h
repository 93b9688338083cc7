#pragma once

#include "genai/base/dims.h"
#include "genai/base/dtype.h"
#include "genai/core/model_spec.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace genai::runner {

/// How one KV tensor is laid out: axes before the batch axis (outer), the batch axis, axes between batch and sequence
/// (heads), the sequence axis, and axes after it (a position's values).
///
///     [2, B, H, P, D]   outer 2 | batch | heads H | positions | D values
class KvLayout {
 public:
  /// Throws kBadPackage when an axis other than batch and sequence has no fixed size, or when the sequence axis does
  /// not come after the batch axis. `model_path` names the file in errors.
  KvLayout(const KvPair& pair, const std::string& model_path);

  DType dtype() const { return dtype_; }
  /// Dims of a tensor with this batch and number of positions.
  Dims dims(std::int64_t batch, std::int64_t positions) const;
  std::size_t size_bytes(std::int64_t batch, std::int64_t positions) const;
  /// Bytes of one position of one row.
  std::size_t bytes_per_position() const { return static_cast<std::size_t>(outer_ * heads_) * value_bytes_; }
  std::size_t sequence_axis() const { return sequence_axis_; }

  std::int64_t fixed_batch() const { return fixed_batch_; }          ///< 0 = any
  std::int64_t fixed_positions() const { return fixed_positions_; }  ///< 0 = any
  /// Whether a row's data lie together, so that a range of rows is a tensor of its own.
  bool rows_are_contiguous() const { return outer_ == 1; }

  /// A row of a tensor of this layout, from position `first` on. A loan.
  struct Place {
    std::byte* data = nullptr;   ///< of the whole tensor
    std::int64_t batch = 0;      ///< of the whole tensor
    std::int64_t positions = 0;  ///< of the whole tensor
    std::int64_t row = 0;
    std::int64_t first = 0;
  };
  /// Copies `count` positions. The places must not overlap. Cost: O(count).
  void copy(const Place& from, const Place& to, std::int64_t count) const;
  /// Sets `count` positions to zero.
  void clear(const Place& at, std::int64_t count) const;

 private:
  std::byte* address(const Place& place, std::int64_t outer, std::int64_t head) const;

  DType dtype_;
  Dims dims_;  ///< batch and sequence axis are 1
  std::size_t batch_axis_;
  std::size_t sequence_axis_;
  std::int64_t fixed_batch_ = 0;
  std::int64_t fixed_positions_ = 0;
  std::int64_t outer_ = 1;
  std::int64_t heads_ = 1;
  std::size_t value_bytes_ = 0;
};

}  // namespace genai::runner
