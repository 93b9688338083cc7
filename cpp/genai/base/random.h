#pragma once

#include <array>
#include <cstdint>

namespace genai {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// Philox-4x32 with 10 rounds: a bijection of the counter for each key, whose outputs pass as random bits.
/// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57U;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;  // golden ratio
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;  // sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32U) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32U) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

/// A number of [0, 1) with 53 random bits: a pure function of its arguments, so that nothing depends on how often or
/// in which order others draw. Different streams of one seed are independent.
constexpr double uniform_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t position) {
  const PhiloxCounter bits =
      philox4x32({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32U),
                  static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32U)},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)});
  const std::uint64_t high = bits[0] >> 5U;  // 27 bits
  const std::uint64_t low = bits[1] >> 6U;   // 26 bits
  return static_cast<double>((high << 26U) | low) * 0x1p-53;
}

}  // namespace genai
