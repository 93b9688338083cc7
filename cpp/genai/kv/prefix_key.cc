#include "genai/kv/prefix_key.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace genai::kv {
namespace {

// The fraction of pi, 256 bits.
constexpr std::uint64_t kC0 = 0x243F6A8885A308D3U;
constexpr std::uint64_t kC1 = 0x13198A2E03707344U;
constexpr std::uint64_t kC2 = 0xA4093822299F31D0U;
constexpr std::uint64_t kC3 = 0x082EFA98EC4E6C89U;

/// Low half xor high half of x * y, from four products of 32-bit halves.
constexpr std::uint64_t fold(std::uint64_t x, std::uint64_t y) {
  constexpr std::uint64_t kMask = 0xFFFFFFFFU;
  const std::uint64_t low = (x & kMask) * (y & kMask);
  const std::uint64_t middle = (x >> 32U) * (y & kMask) + (low >> 32U);
  const std::uint64_t other = (x & kMask) * (y >> 32U) + (middle & kMask);
  const std::uint64_t high = (x >> 32U) * (y >> 32U) + (middle >> 32U) + (other >> 32U);
  return high ^ ((other << 32U) | (low & kMask));
}

constexpr PrefixKey absorb(const PrefixKey& key, std::uint64_t word) {
  return {.low = fold(key.low ^ word ^ kC0, key.high ^ kC1),
          .high = fold(key.high ^ std::rotl(word, 32) ^ kC2, key.low ^ kC3)};
}

}  // namespace

PrefixKey root_key(std::string_view salt) {
  PrefixKey key{.low = kC0, .high = kC2};
  for (std::size_t begin = 0; begin < salt.size(); begin += 8) {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(8, salt.size() - begin); ++i) {
      word |= std::uint64_t{static_cast<unsigned char>(salt[begin + i])} << (8 * i);
    }
    key = absorb(key, word);
  }
  return absorb(absorb(key, salt.size()), kC1);
}

PrefixKey child_key(const PrefixKey& parent, std::span<const TokenId> tokens) {
  PrefixKey key = parent;
  std::size_t i = 0;
  for (; i + 1 < tokens.size(); i += 2) {
    const std::uint64_t first = static_cast<std::uint32_t>(tokens[i]);
    const std::uint64_t second = static_cast<std::uint32_t>(tokens[i + 1]);
    key = absorb(key, first | (second << 32U));
  }
  if (i < tokens.size()) key = absorb(key, static_cast<std::uint32_t>(tokens[i]));
  return absorb(absorb(key, tokens.size()), kC3);
}

}  // namespace genai::kv
