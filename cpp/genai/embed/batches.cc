#include "genai/embed/batches.h"

#include <algorithm>
#include <numeric>

namespace genai::embed {

std::vector<Batch> plan_batches(std::span<const std::size_t> lengths, const BatchLimits& limits) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t left, std::size_t right) { return lengths[left] > lengths[right]; });
  std::vector<Batch> batches;
  for (const std::size_t text : order) {
    const auto fits = [&](const Batch& batch) {
      const auto rows = static_cast<std::int64_t>(batch.texts.size()) + 1;
      return rows * static_cast<std::int64_t>(batch.longest) <= limits.max_tokens &&
             (limits.max_rows <= 0 || rows <= limits.max_rows) &&
             (!limits.equal_lengths || batch.longest == lengths[text]);
    };
    if (batches.empty() || !fits(batches.back())) batches.push_back({.texts = {}, .longest = lengths[text]});
    batches.back().texts.push_back(text);
  }
  return batches;
}

}  // namespace genai::embed
