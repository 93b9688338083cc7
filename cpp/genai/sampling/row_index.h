#pragma once

#include "genai/sampling/candidates.h"
#include "genai/sampling/kernels.h"

#include <cstddef>
#include <span>
#include <vector>

namespace genai::sampling {

/// A row of logits prepared so that its largest values are found without a sort: the scan and the largest number of
/// each block of 64. Buffers are reused: float32 [num_blocks(vocab)].
class RowIndex {
 public:
  /// Reads the row. `row` is a loan until the next call. Cost: one pass.
  void read(std::span<const float> row);

  const RowScan& scan() const { return scan_; }
  std::span<const float> row() const { return row_; }

  /// A logit that at least `k` values reach, near the k-th largest; the lowest float when k is above the number of
  /// blocks. Requires: k >= 1. Cost: O(vocab / 64).
  float reached_by(std::size_t k);

  /// Replaces `candidates` by all tokens whose logit is a number >= threshold, in id order, with the logits of the
  /// row and without weights. Cost: O(vocab / 64 + 64 * blocks with such a token).
  void collect(float threshold, Candidates& candidates) const;

 private:
  std::span<const float> row_;  ///< kept alive by the caller of read()
  RowScan scan_;
  std::vector<float> block_max_;
  std::vector<float> scratch_;
};

}  // namespace genai::sampling
