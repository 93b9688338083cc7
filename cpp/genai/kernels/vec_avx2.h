#pragma once

#include "genai/kernels/vec_element.h"

#include <immintrin.h>

namespace genai::kernels {
namespace {

/// 16 floats in two registers; as VecPlain.
struct VecAvx2 {
  static constexpr int kMaxRows = 6;
  static constexpr int columns(int rows) { return rows <= 3 ? 2 : 1; }

  __m256 a;
  __m256 b;

  static VecAvx2 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static VecAvx2 load(const Half* p) {
    const auto* const halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  static __m256 widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
  static VecAvx2 load(const BHalf* p) {
    const auto* const halves = reinterpret_cast<const __m128i*>(p);
    return {widen(_mm_loadu_si128(halves)), widen(_mm_loadu_si128(halves + 1))};
  }
  static VecAvx2 load(const std::int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, a);
    _mm256_storeu_ps(p + 8, b);
  }
  void store(Half* p) const {
    auto* const halves = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(halves, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
  }
  static VecAvx2 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static VecAvx2 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static VecAvx2 fma(VecAvx2 x, VecAvx2 y, VecAvx2 z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  VecAvx2 operator+(VecAvx2 y) const { return {_mm256_add_ps(a, y.a), _mm256_add_ps(b, y.b)}; }
  VecAvx2 operator-(VecAvx2 y) const { return {_mm256_sub_ps(a, y.a), _mm256_sub_ps(b, y.b)}; }
  VecAvx2 operator*(VecAvx2 y) const { return {_mm256_mul_ps(a, y.a), _mm256_mul_ps(b, y.b)}; }
  VecAvx2 operator/(VecAvx2 y) const { return {_mm256_div_ps(a, y.a), _mm256_div_ps(b, y.b)}; }
  static VecAvx2 max(VecAvx2 x, VecAvx2 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static VecAvx2 zero_below(VecAvx2 x, VecAvx2 limit, VecAvx2 y) {
    return {_mm256_and_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_NLT_UQ), y.a),
            _mm256_and_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_NLT_UQ), y.b)};
  }
  static __m256 power(__m256 x) {
    const __m256i exponent = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(127 - 0x4B400000));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static VecAvx2 pow2(VecAvx2 shifted) { return {power(shifted.a), power(shifted.b)}; }
  float sum() const {
    const __m256 eight = _mm256_add_ps(a, b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
  }
  float largest() const {
    const __m256 eight = _mm256_max_ps(a, b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  }
  [[gnu::always_inline]] static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  [[gnu::always_inline]] static void prefetch_far(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }
};

}  // namespace
}  // namespace genai::kernels
