#pragma once

#include "genai/kernels/vec_element.h"

#include <immintrin.h>

namespace genai::kernels {
namespace {

/// 16 floats in one register; as VecPlain. kFetchesFar: prefetch() fetches into the second-level cache only,
/// but for int8, which is computed more slowly than it arrives, and prefetch_near() from there into the first level.
template <bool kFetchesFar>
struct VecAvx512Of {
  static constexpr int kMaxRows = 12;
  static constexpr int columns(int rows) { return rows <= 6 ? 4 : 2; }

  __m512 v;

  static VecAvx512Of load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static VecAvx512Of load(const Half* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static VecAvx512Of load(const BHalf* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static VecAvx512Of load(const std::int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(Half* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static VecAvx512Of set1(float x) { return {_mm512_set1_ps(x)}; }
  static VecAvx512Of zero() { return {_mm512_setzero_ps()}; }
  static VecAvx512Of fma(VecAvx512Of a, VecAvx512Of b, VecAvx512Of c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  VecAvx512Of operator+(VecAvx512Of other) const { return {_mm512_add_ps(v, other.v)}; }
  VecAvx512Of operator-(VecAvx512Of other) const { return {_mm512_sub_ps(v, other.v)}; }
  VecAvx512Of operator*(VecAvx512Of other) const { return {_mm512_mul_ps(v, other.v)}; }
  VecAvx512Of operator/(VecAvx512Of other) const { return {_mm512_div_ps(v, other.v)}; }
  static VecAvx512Of max(VecAvx512Of a, VecAvx512Of b) { return {_mm512_max_ps(a.v, b.v)}; }
  static VecAvx512Of zero_below(VecAvx512Of x, VecAvx512Of limit, VecAvx512Of y) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), y.v)};
  }
  static VecAvx512Of pow2(VecAvx512Of shifted) {
    const __m512i exponent = _mm512_add_epi32(_mm512_castps_si512(shifted.v), _mm512_set1_epi32(127 - 0x4B400000));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
  }
  float sum() const { return _mm512_reduce_add_ps(v); }
  float largest() const { return _mm512_reduce_max_ps(v); }
  [[gnu::always_inline]] static void prefetch(const void* p) {
    if constexpr (kFetchesFar) return prefetch_far(p);
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  [[gnu::always_inline]] static void prefetch(const std::int8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
  [[gnu::always_inline]] static void prefetch_near(const void* p)
    requires kFetchesFar
  {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  [[gnu::always_inline]] static void prefetch_far(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }
};

using VecAvx512 = VecAvx512Of<false>;
using VecAvx512Far = VecAvx512Of<true>;

}  // namespace
}  // namespace genai::kernels
