#include "genai/sampling/row_index.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace genai::sampling {

void RowIndex::read(std::span<const float> row) {
  row_ = row;
  block_max_.resize(num_blocks(row.size()));
  scan_ = kernels(best_isa()).scan(row.data(), row.size(), block_max_.data());
}

float RowIndex::reached_by(std::size_t k) {
  // Each of the k blocks with the largest maxima has a value that reaches the smallest of these maxima.
  if (k > block_max_.size()) return std::numeric_limits<float>::lowest();
  scratch_.assign(block_max_.begin(), block_max_.end());
  const auto place = scratch_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::ranges::nth_element(scratch_, place, std::greater<>());
  return std::max(*place, std::numeric_limits<float>::lowest());  // -inf is no number
}

void RowIndex::collect(float threshold, Candidates& candidates) const {
  const auto holds_any = [&](float block_max) { return block_max >= threshold; };
  const auto blocks = static_cast<std::size_t>(std::ranges::count_if(block_max_, holds_any));
  candidates.ids.resize(blocks * kBlockSize);
  candidates.logits.resize(blocks * kBlockSize);
  std::size_t size = 0;
  for (std::size_t block = 0; block < block_max_.size(); ++block) {
    if (!holds_any(block_max_[block])) continue;
    const std::size_t end = std::min((block + 1) * kBlockSize, row_.size());
    for (std::size_t i = block * kBlockSize; i < end; ++i) {
      candidates.ids[size] = static_cast<TokenId>(i);  // overwritten by the next one unless it counts
      candidates.logits[size] = row_[i];
      size += row_[i] >= threshold ? 1 : 0;
    }
  }
  candidates.ids.resize(size);
  candidates.logits.resize(size);
  candidates.weights.clear();
  candidates.tail_weight = 0.0;
}

}  // namespace genai::sampling
