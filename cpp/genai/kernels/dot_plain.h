#pragma once

#include "genai/kernels/vec_plain.h"

#include <cstddef>
#include <cstdint>

namespace genai::kernels {
namespace {

/// 16 lanes of int32, or of four bytes each; the interface that the dot_*.h files share.
struct DotPlain {
  using Floats = VecPlain;
  struct Ints {
    std::int32_t v[16];
  };
  /// Rows that are computed straight from packed codes; rows of a tile that has both halves of a panel; rows of a
  /// float32 tile. kPairs: tiles compute two rows and two columns at once, see DotNeon. kQuantizesMany: quantize_many
  /// does what Quantizer does, for 16 blocks of 32.
  static constexpr int kDirectRows = 2;
  static constexpr int kWideRows = 0;
  static constexpr int kTileRows = 2;
  static constexpr int kExactRows = 2;
  static constexpr bool kSigned8 = false;
  static constexpr bool kPairs = false;
  static constexpr bool kQuantizesMany = false;
  static constexpr std::ptrdiff_t kPrefetchBytes = 0;

  template <typename Function>
  static Ints each(Ints a, const Function& function) {
    for (std::int32_t& lane : a.v) lane = static_cast<std::int32_t>(function(static_cast<std::uint32_t>(lane)));
    return a;
  }
  static Ints load(const std::byte* line) {
    Ints r;
    std::memcpy(r.v, line, sizeof(r.v));
    return r;
  }
  static void store(Ints a, std::byte* line) { std::memcpy(line, a.v, sizeof(a.v)); }
  static Ints splat(std::int32_t x) {
    Ints r;
    for (std::int32_t& lane : r.v) lane = x;
    return r;
  }
  static Ints add(Ints a, Ints b) {
    for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
    return a;
  }
  static std::int32_t sum(Ints a) {
    std::int32_t total = 0;
    for (const std::int32_t lane : a.v) total += lane;
    return total;
  }
  /// Bits 0..3 and 4..7 of each byte.
  static Ints low_bits(Ints a) {
    return each(a, [](std::uint32_t x) { return x & 0x0F0F0F0FU; });
  }
  static Ints high_bits(Ints a) {
    return each(a, [](std::uint32_t x) { return x >> 4 & 0x0F0F0F0FU; });
  }
  template <int kIndex>
  static Floats byte(Ints a) {
    Floats r;
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(static_cast<std::uint32_t>(a.v[i]) >> 8 * kIndex & 0xFFU);
    return r;
  }
  /// sum + the dot product of each lane's four codes, unsigned, with four int8. dot: codes below 16.
  static Ints dot(Ints sum, Ints codes, const std::int8_t* four) {
    for (int i = 0; i < 16; ++i) {
      const auto lane = static_cast<std::uint32_t>(codes.v[i]);
      for (int j = 0; j < 4; ++j) sum.v[i] += static_cast<std::int32_t>(lane >> 8 * j & 0xFFU) * four[j];
    }
    return sum;
  }
  static Ints dot8(Ints sum, Ints codes, const std::int8_t* four) { return dot(sum, codes, four); }
  static Floats to_float(Ints a) {
    Floats r;
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(a.v[i]);
    return r;
  }
  /// Rounds |x| <= 127 to 16 codes and returns them; NaN becomes any code.
  static Ints quantize(Floats x, std::int8_t* codes) {
    Ints r;
    for (int i = 0; i < 16; ++i) {
      // Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
      const float shifted = x.v[i] + 12582912.0F;
      r.v[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(shifted) & 0xFFU);
      codes[i] = static_cast<std::int8_t>(r.v[i]);
    }
    return r;
  }
};

}  // namespace
}  // namespace genai::kernels
