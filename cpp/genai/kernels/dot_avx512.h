#pragma once

#include "genai/kernels/quantize_avx512.h"
#include "genai/kernels/vec_avx512.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace genai::kernels {
namespace {

/// 16 lanes in one register, with VNNI; as DotPlain.
struct DotAvx512 {
  using Floats = VecAvx512;
  struct Ints {
    __m512i v;
  };
  static constexpr int kDirectRows = 4;
  static constexpr int kWideRows = 8;
  static constexpr int kTileRows = 5;
  static constexpr int kExactRows = 12;
  static constexpr bool kSigned8 = false;
  static constexpr bool kPairs = false;
  static constexpr bool kQuantizesMany = true;
  static constexpr std::ptrdiff_t kPrefetchBytes = 4096;

  static Ints load(const std::byte* line) { return {_mm512_loadu_si512(line)}; }
  static void store(Ints a, std::byte* line) { _mm512_storeu_si512(line, a.v); }
  static Ints splat(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
  static Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
  static std::int32_t sum(Ints a) { return _mm512_reduce_add_epi32(a.v); }
  static Ints low_bits(Ints a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(0x0F))}; }
  static Ints high_bits(Ints a) { return low_bits({_mm512_srli_epi16(a.v, 4)}); }
  template <int kIndex>
  static Floats byte(Ints a) {
    return {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(a.v, 8 * kIndex), _mm512_set1_epi32(0xFF)))};
  }
  static Ints dot(Ints sum, Ints codes, const std::int8_t* four) {
    std::int32_t x = 0;
    __builtin_memcpy(&x, four, sizeof(x));
    return {_mm512_dpbusd_epi32(sum.v, codes.v, _mm512_set1_epi32(x))};
  }
  static Ints dot8(Ints sum, Ints codes, const std::int8_t* four) { return dot(sum, codes, four); }
  static Floats to_float(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
  static Ints quantize(Floats x, std::int8_t* codes) {
    const __m512i wide = _mm512_cvtps_epi32(x.v);
    const __m128i narrow = _mm512_cvtepi32_epi8(wide);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), narrow);
    return {_mm512_cvtepi8_epi32(narrow)};
  }
  static void quantize_many(const float* x, std::int8_t* codes, std::int64_t stride, float* scales,
                            std::int32_t* offsets) {
    quantize_blocks(x, codes, stride, scales, offsets);
  }
};

}  // namespace
}  // namespace genai::kernels
