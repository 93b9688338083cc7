#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace genai::sampling {

/// The smallest key at which the sum of the weights of all keys up to it reaches `target`; the largest key if no sum
/// does. `weight_of(key)` is the weight of one key, >= 0. Reorders `keys`, which are all different.
/// Requires: `keys` is not empty. Cost: O(size) on average, as a quickselect.
template <typename WeightOf>
std::uint64_t select_by_weight(std::span<std::uint64_t> keys, double target, const WeightOf& weight_of) {
  constexpr std::size_t kSmall = 32;
  double sum = 0.0;  // weight of all keys before `keys`
  while (keys.size() > kSmall) {
    const std::size_t half = keys.size() / 2;
    std::ranges::nth_element(keys, keys.begin() + static_cast<std::ptrdiff_t>(half));
    double first_half = 0.0;
    for (const std::uint64_t key : keys.first(half)) first_half += weight_of(key);
    if (sum + first_half >= target) {
      keys = keys.first(half);
    } else {
      sum += first_half;
      keys = keys.subspan(half);
    }
  }
  std::ranges::sort(keys);
  for (const std::uint64_t key : keys) {
    sum += weight_of(key);
    if (sum >= target) return key;
  }
  return keys.back();
}

}  // namespace genai::sampling
