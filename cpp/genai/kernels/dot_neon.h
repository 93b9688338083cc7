#pragma once

#include "genai/kernels/vec_neon.h"

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace genai::kernels {
namespace {

/// 16 lanes in four registers; as DotPlain. kDot: with the dot product instructions (Armv8.2 DotProd). kMatrix: tiles
/// with those that multiply 8 of depth of two rows and two columns (Armv8.6 I8MM) as well.
template <bool kDot, bool kMatrix = false>
struct DotNeon {
  using Floats = VecNeon;
  struct Ints {
    int32x4_t v[4];
  };
  static constexpr int kDirectRows = 2;
  static constexpr int kWideRows = 0;
  static constexpr int kTileRows = 2;
  static constexpr int kExactRows = 3;
  static constexpr bool kSigned8 = true;
  static constexpr bool kPairs = kMatrix;
  static constexpr bool kQuantizesMany = false;
  static constexpr std::ptrdiff_t kPrefetchBytes = 2048;

  static Ints load(const std::byte* line) {
    const auto* const bytes = reinterpret_cast<const std::int8_t*>(line);
    Ints r;
    for (int i = 0; i < 4; ++i) r.v[i] = vreinterpretq_s32_s8(vld1q_s8(bytes + 16 * i));
    return r;
  }
  static void store(Ints a, std::byte* line) {
    auto* const bytes = reinterpret_cast<std::int8_t*>(line);
    for (int i = 0; i < 4; ++i) vst1q_s8(bytes + 16 * i, vreinterpretq_s8_s32(a.v[i]));
  }
  static Ints splat(std::int32_t x) {
    const int32x4_t four = vdupq_n_s32(x);
    return {{four, four, four, four}};
  }
  static Ints add(Ints a, Ints b) {
    for (int i = 0; i < 4; ++i) a.v[i] = vaddq_s32(a.v[i], b.v[i]);
    return a;
  }
  static std::int32_t sum(Ints a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
  }
  static Ints low_bits(Ints a) {
    const uint8x16_t mask = vdupq_n_u8(0x0F);
    for (int32x4_t& four : a.v) four = vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(four), mask));
    return a;
  }
  static Ints high_bits(Ints a) {
    for (int32x4_t& four : a.v) four = vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(four), 4));
    return a;
  }
  template <int kIndex>
  static Floats byte(Ints a) {
    Floats r;
    for (int i = 0; i < 4; ++i) {
      uint32x4_t bits = vreinterpretq_u32_s32(a.v[i]);
      if constexpr (kIndex > 0) bits = vshrq_n_u32(bits, 8 * kIndex);
      r.v[i] = vcvtq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xFF)));
    }
    return r;
  }
  /// sum + signed times signed bytes, four by four.
  static int32x4_t add_products(int32x4_t sum, int8x16_t codes, int8x16_t x) {
    if constexpr (kDot) {
      return vdotq_s32(sum, codes, x);
    } else {
      const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
      const int16x8_t high = vmull_high_s8(codes, x);
      return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
    }
  }
  static int8x16_t four_of(const std::int8_t* four) {
    std::int32_t x = 0;
    __builtin_memcpy(&x, four, sizeof(x));
    return vreinterpretq_s8_s32(vdupq_n_s32(x));
  }
  static Ints dot(Ints sum, Ints codes, const std::int8_t* four) {
    const int8x16_t x = four_of(four);
    for (int i = 0; i < 4; ++i) sum.v[i] = add_products(sum.v[i], vreinterpretq_s8_s32(codes.v[i]), x);
    return sum;
  }
  static Ints dot8(Ints sum, Ints codes, const std::int8_t* four) {
    const int8x16_t x = four_of(four);
    const int8x16_t middle = vdupq_n_s8(static_cast<std::int8_t>(-128));
    for (int i = 0; i < 4; ++i) {
      sum.v[i] = add_products(sum.v[i], veorq_s8(vreinterpretq_s8_s32(codes.v[i]), middle), x);
    }
    return sum;
  }
  /// 8 of depth of 16 columns, of two lines: a column's 8 lie together. kBits 8: codes become code - 128.
  template <int kBits>
  static void store_pair(Ints first, Ints second, std::byte* to) {
    auto* const bytes = reinterpret_cast<std::int8_t*>(to);
    const int8x16_t middle = vdupq_n_s8(static_cast<std::int8_t>(kBits == 8 ? -128 : 0));
    for (int i = 0; i < 4; ++i) {
      const int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(first.v[i], second.v[i]));
      const int8x16_t high = vreinterpretq_s8_s32(vzip2q_s32(first.v[i], second.v[i]));
      vst1q_s8(bytes + 32 * i, veorq_s8(low, middle));
      vst1q_s8(bytes + 32 * i + 16, veorq_s8(high, middle));
    }
  }
  /// Sums of two rows, 16 columns each, become sums of two rows and two columns a register, and those become rows
  /// again.
  static void swap_pair(Ints& a, Ints& b) {
    for (int i = 0; i < 4; ++i) {
      const int64x2_t first = vreinterpretq_s64_s32(a.v[i]);
      const int64x2_t second = vreinterpretq_s64_s32(b.v[i]);
      a.v[i] = vreinterpretq_s32_s64(vzip1q_s64(first, second));
      b.v[i] = vreinterpretq_s32_s64(vzip2q_s64(first, second));
    }
  }
  /// Adds the products of 8 of depth of two rows, `stride` bytes apart, with what store_pair() stored, to such sums.
  static void dot_pair(Ints& a, Ints& b, const std::byte* lines, const std::int8_t* eight, std::int64_t stride) {
    const int8x16_t rows = vcombine_s8(vld1_s8(eight), vld1_s8(eight + stride));
    const auto* const codes = reinterpret_cast<const std::int8_t*>(lines);
    for (int i = 0; i < 4; ++i) {
      a.v[i] = vmmlaq_s32(a.v[i], rows, vld1q_s8(codes + 32 * i));
      b.v[i] = vmmlaq_s32(b.v[i], rows, vld1q_s8(codes + 32 * i + 16));
    }
  }
  static Floats to_float(Ints a) {
    Floats r;
    for (int i = 0; i < 4; ++i) r.v[i] = vcvtq_f32_s32(a.v[i]);
    return r;
  }
  static Ints quantize(Floats x, std::int8_t* codes) {
    Ints r;
    for (int i = 0; i < 4; ++i) r.v[i] = vcvtnq_s32_f32(x.v[i]);
    const int8x8_t low = vqmovn_s16(vcombine_s16(vqmovn_s32(r.v[0]), vqmovn_s32(r.v[1])));
    const int8x8_t high = vqmovn_s16(vcombine_s16(vqmovn_s32(r.v[2]), vqmovn_s32(r.v[3])));
    vst1q_s8(codes, vcombine_s8(low, high));
    return r;
  }
};

}  // namespace
}  // namespace genai::kernels
