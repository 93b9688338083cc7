#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace genai::sampling {

/// Sorts by value, equal values by index. Requires: value >= 0, index < 2^32.
constexpr std::uint64_t order_key(float value, std::size_t index) {
  return (static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(value + 0.0F)) << 32U) | index;
}
constexpr float value_of_order_key(std::uint64_t key) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(key >> 32U));
}

namespace internal {

/// The smallest key at which the sum of the weights of all keys up to it reaches `target`; the largest key if no sum
/// does. Reorders `keys`. Requires: `keys` is not empty.
template <typename WeightOf>
std::uint64_t quickselect_by_weight(std::span<std::uint64_t> keys, double target, const WeightOf& weight_of) {
  constexpr std::size_t kSmall = 32;
  const auto weight_of_key = [&](std::uint64_t key) { return static_cast<double>(weight_of(key & 0xFFFFFFFFU)); };
  double sum = 0.0;  // weight of all keys before `keys`
  while (keys.size() > kSmall) {
    const std::size_t half = keys.size() / 2;
    std::ranges::nth_element(keys, keys.begin() + static_cast<std::ptrdiff_t>(half));
    double first_half = 0.0;
    for (const std::uint64_t key : keys.first(half)) first_half += weight_of_key(key);
    if (sum + first_half >= target) {
      keys = keys.first(half);
    } else {
      sum += first_half;
      keys = keys.subspan(half);
    }
  }
  std::ranges::sort(keys);
  for (const std::uint64_t key : keys) {
    sum += weight_of_key(key);
    if (sum >= target) return key;
  }
  return keys.back();
}

}  // namespace internal

/// The order key of the last of the smallest set of entries, taken in order of value_of(i) and then i, whose weights
/// weight_of(i) sum up to `target` or more; of the last entry of all if no set does. Weights are >= 0. Requires: size
/// >= 1. `scratch` is a buffer. Cost: O(size): large inputs are first cut down by a histogram of values, whose border
/// bin alone is looked at closely.
template <typename ValueOf, typename WeightOf>
std::uint64_t find_weighted_border(std::size_t size, double target, const ValueOf& value_of, const WeightOf& weight_of,
                                   std::vector<std::uint64_t>& scratch) {
  constexpr std::size_t kBins = 2048;
  constexpr float kBinsPerUnit = 16.0F;
  constexpr std::size_t kWorthIt = 1024;
  const auto bin_of = [&](float value) {  // ascending with value
    return static_cast<std::size_t>(std::min(value * kBinsPerUnit, static_cast<float>(kBins - 1)));
  };
  scratch.clear();
  if (size < kWorthIt) {
    for (std::size_t i = 0; i < size; ++i) scratch.push_back(order_key(value_of(i), i));
  } else {
    std::array<double, kBins> weights{};
    std::array<bool, kBins> is_used{};
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t bin = bin_of(value_of(i));
      weights[bin] += static_cast<double>(weight_of(i));
      is_used[bin] = true;
    }
    std::size_t border_bin = 0;
    double before = 0.0;  // weight of the bins before the border bin
    double sum = 0.0;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      if (!is_used[bin]) continue;
      border_bin = bin;
      before = sum;
      sum += weights[bin];
      if (sum >= target) break;
    }
    for (std::size_t i = 0; i < size; ++i) {
      if (bin_of(value_of(i)) == border_bin) scratch.push_back(order_key(value_of(i), i));
    }
    target -= before;
  }
  return internal::quickselect_by_weight(std::span(scratch), target, weight_of);
}

}  // namespace genai::sampling
