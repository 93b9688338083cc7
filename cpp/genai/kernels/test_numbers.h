#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace genai::kernels {

/// The same numbers each time, from -2 to 2.
inline std::vector<float> random_numbers(std::int64_t count) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  std::uint64_t state = 99;
  for (float& number : numbers) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    number = static_cast<float>(static_cast<std::int64_t>(state >> 40) - (1 << 23)) * 0x1p-22F;
  }
  return numbers;
}

}  // namespace genai::kernels
