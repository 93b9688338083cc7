#include "genai/base/checksum.h"

#include <array>
#include <cstring>

namespace genai {
namespace {

constexpr std::size_t kLanes = 4;
constexpr std::size_t kStride = kLanes * sizeof(std::uint64_t);
constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio, odd

/// A bijection of `state` for each word and of the word for each state.
constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  state = (state ^ word) * kMultiplier;
  return state ^ (state >> 32U);
}

void mix_stride(std::array<std::uint64_t, kLanes>& lanes, const std::byte* bytes) {
  std::array<std::uint64_t, kLanes> words;
  std::memcpy(words.data(), bytes, kStride);
  for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, kLanes> lanes = {1, 2, 3, 4};  // independent, so that the processor works on all at once
  std::size_t done = 0;
  for (; done + kStride <= bytes.size(); done += kStride) mix_stride(lanes, bytes.data() + done);
  if (done < bytes.size()) {
    std::array<std::byte, kStride> last{};
    std::memcpy(last.data(), bytes.data() + done, bytes.size() - done);
    mix_stride(lanes, last.data());
  }
  std::uint64_t result = bytes.size();
  for (const std::uint64_t lane : lanes) result = mix(result, lane);
  return mix(result, kMultiplier);
}

}  // namespace genai
