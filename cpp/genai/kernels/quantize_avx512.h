#pragma once

// 16 blocks of activations become int8 at once. Included after the pragma of the instruction set; local to the file.

#include "genai/kernels/join_avx512.h"
#include "genai/kernels/unrolled.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace genai::kernels {
namespace {

inline __m512 larger_bits(__m512 a, __m512 b) {
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
inline __m512 sum_of_bits(__m512 a, __m512 b) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

/// Quantizes x[16][32], a block a row, as Quantizer::one does. codes[16][stride], scales[16], offsets[16].
inline void quantize_blocks(const float* x, std::int8_t* codes, std::int64_t stride, float* scales,
                            std::int32_t* offsets) {
  constexpr float kMax = std::numeric_limits<float>::max();
  __m512 lanes[16];
  // Sizes are compared as integers, where infinities and NaN are the largest.
  unrolled<16>([&](auto i) __attribute__((always_inline)) {
    lanes[i] = larger_bits(_mm512_abs_ps(_mm512_loadu_ps(x + 32 * i)), _mm512_abs_ps(_mm512_loadu_ps(x + 32 * i + 16)));
  });
  const __m512 sizes = join_lanes<larger_bits>(lanes);
  const __mmask16 usable = _mm512_cmp_ps_mask(sizes, _mm512_set1_ps(127.0F / kMax), _CMP_GT_OQ) &
                           _mm512_cmp_ps_mask(sizes, _mm512_set1_ps(kMax), _CMP_LE_OQ);
  const __m512 most = _mm512_set1_ps(127.0F);
  alignas(64) float factors[16];
  _mm512_store_ps(factors, _mm512_maskz_div_ps(usable, most, sizes));
  const __m512 poison = _mm512_sub_ps(sizes, sizes);  // NaN for an infinity or NaN, else 0
  _mm512_storeu_ps(scales, _mm512_add_ps(_mm512_div_ps(sizes, most), poison));
  unrolled<16>([&](auto i) __attribute__((always_inline)) {
    const __m512 factor = _mm512_set1_ps(factors[i]);
    const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 32 * i), factor));
    const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 32 * i + 16), factor));
    auto* const to = reinterpret_cast<__m128i*>(codes + i * stride);
    _mm_storeu_si128(to, _mm512_cvtepi32_epi8(first));
    _mm_storeu_si128(to + 1, _mm512_cvtepi32_epi8(second));
    lanes[i] = _mm512_castsi512_ps(_mm512_add_epi32(first, second));
  });
  const __m512i sums = _mm512_castps_si512(join_lanes<sum_of_bits>(lanes));
  _mm512_storeu_si512(offsets, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sums, 3)));
}

}  // namespace
}  // namespace genai::kernels
