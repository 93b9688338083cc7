#pragma once

#include "genai/kernels/vec_avx2.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace genai::kernels {
namespace {

/// 16 lanes in two registers; as DotPlain. kVnni: with AVX-VNNI.
template <bool kVnni>
struct DotAvx2 {
  using Floats = VecAvx2;
  struct Ints {
    __m256i a;
    __m256i b;
  };
  static constexpr int kDirectRows = 2;
  static constexpr int kWideRows = 0;
  static constexpr int kTileRows = 2;
  static constexpr int kExactRows = 3;
  static constexpr bool kSigned8 = true;
  static constexpr bool kPairs = false;
  static constexpr bool kQuantizesMany = false;
  static constexpr std::ptrdiff_t kPrefetchBytes = 4096;

  static const __m256i* at(const void* p) { return static_cast<const __m256i*>(p); }
  static Ints load(const std::byte* line) { return {_mm256_loadu_si256(at(line)), _mm256_loadu_si256(at(line + 32))}; }
  static void store(Ints x, std::byte* line) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(line), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(line + 32), x.b);
  }
  static Ints splat(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static Ints add(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static std::int32_t sum(Ints x) {
    const __m256i eight = _mm256_add_epi32(x.a, x.b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1);
  }
  static Ints low_bits(Ints x) {
    const __m256i mask = _mm256_set1_epi8(0x0F);
    return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
  }
  static Ints high_bits(Ints x) { return low_bits({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
  template <int kIndex>
  static __m256 byte_of(__m256i x) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x, 8 * kIndex), _mm256_set1_epi32(0xFF)));
  }
  template <int kIndex>
  static Floats byte(Ints x) {
    return {byte_of<kIndex>(x.a), byte_of<kIndex>(x.b)};
  }
  static __m256i four_of(const std::int8_t* four) {
    std::int32_t x = 0;
    __builtin_memcpy(&x, four, sizeof(x));
    return _mm256_set1_epi32(x);
  }
  /// sum + unsigned times signed bytes, four by four; pairs must stay within 16 bits.
  static __m256i add_products(__m256i sum, __m256i codes, __m256i x) {
    if constexpr (kVnni) {
      return _mm256_dpbusd_avx_epi32(sum, codes, x);
    } else {
      return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
    }
  }
  static Ints dot(Ints sum, Ints codes, const std::int8_t* four) {
    const __m256i x = four_of(four);
    return {add_products(sum.a, codes.a, x), add_products(sum.b, codes.b, x)};
  }
  /// Sizes of the codes, less 128, times activations with the codes' signs: at most 128 * 127 twice.
  static __m256i add_signed(__m256i sum, __m256i codes, __m256i x) {
    const __m256i less = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
    return add_products(sum, _mm256_abs_epi8(less), _mm256_sign_epi8(x, less));
  }
  static Ints dot8(Ints sum, Ints codes, const std::int8_t* four) {
    const __m256i x = four_of(four);
    return {add_signed(sum.a, codes.a, x), add_signed(sum.b, codes.b, x)};
  }
  static Floats to_float(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static Ints quantize(Floats x, std::int8_t* codes) {
    const Ints wide = {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
    // Packing goes by halves of 128 bits: 0..3 of a, of b, then 4..7 of a, of b.
    __m256i narrow = _mm256_packs_epi16(_mm256_packs_epi32(wide.a, wide.b), _mm256_setzero_si256());
    narrow = _mm256_permutevar8x32_epi32(narrow, _mm256_setr_epi32(0, 4, 1, 5, 2, 3, 6, 7));
    const __m128i bytes = _mm256_castsi256_si128(narrow);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
  }
};

}  // namespace
}  // namespace genai::kernels
