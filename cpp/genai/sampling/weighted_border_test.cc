#include "genai/sampling/weighted_border.h"

#include <doctest/doctest.h>

#include <numeric>
#include <random>
#include <vector>

namespace genai::sampling {
namespace {

std::uint64_t border_by_sorting(const std::vector<float>& values, const std::vector<float>& weights, double target) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return values[i]; });
  double sum = 0.0;
  for (const std::size_t i : order) {
    sum += static_cast<double>(weights[i]);
    if (sum >= target) return order_key(values[i], i);
  }
  return order_key(values[order.back()], order.back());
}

// Weights are small integers, so that sums are exact in any order.
TEST_CASE("WeightedBorder_AnySizeAndTarget_EqualsSorting") {
  std::mt19937 random(11);
  std::vector<std::uint64_t> scratch;
  for (const std::size_t size : {1U, 2U, 31U, 33U, 100U, 1023U, 1024U, 5000U}) {
    for (const float spread : {0.0F, 0.01F, 3.0F, 500.0F}) {
      std::vector<float> values(size);
      std::vector<float> weights(size);
      double total = 0.0;
      for (std::size_t i = 0; i < size; ++i) {
        values[i] = spread * static_cast<float>(random() % 1000) / 1000.0F;
        weights[i] = static_cast<float>(random() % 4);
        total += static_cast<double>(weights[i]);
      }
      for (const double share : {0.0, 0.1, 0.5, 0.99, 1.0, 2.0}) {
        const std::uint64_t got = find_weighted_border(
            size, share * total, [&](std::size_t i) { return values[i]; }, [&](std::size_t i) { return weights[i]; },
            scratch);

        CHECK(got == border_by_sorting(values, weights, share * total));
      }
    }
  }
}

}  // namespace
}  // namespace genai::sampling
