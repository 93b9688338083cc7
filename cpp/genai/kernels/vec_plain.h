#pragma once

#include "genai/kernels/vec_element.h"

#include <algorithm>

namespace genai::kernels {
namespace {

/// 16 floats in plain C++; the interface that the vec_*.h files share. T is float, Half, BHalf or int8.
struct VecPlain {
  /// Largest tile of rows whose accumulators stay in registers, and vectors a row in a tile of `rows` rows.
  static constexpr int kMaxRows = 3;
  static constexpr int columns(int /*rows*/) { return 1; }

  float v[16];

  template <typename T>
  static VecPlain load(const T* p) {
    VecPlain r;
    for (int i = 0; i < 16; ++i) r.v[i] = to_float(p[i]);
    return r;
  }
  void store(float* p) const { std::copy(v, v + 16, p); }
  void store(Half* p) const {
    for (int i = 0; i < 16; ++i) from_float(v[i], p + i);
  }
  static VecPlain set1(float x) {
    VecPlain r;
    for (float& lane : r.v) lane = x;
    return r;
  }
  static VecPlain zero() { return set1(0.0F); }
  static VecPlain fma(VecPlain a, VecPlain b, VecPlain c) {
    for (int i = 0; i < 16; ++i) c.v[i] += a.v[i] * b.v[i];
    return c;
  }
  VecPlain operator+(VecPlain b) const {
    VecPlain a = *this;
    for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
    return a;
  }
  VecPlain operator-(VecPlain b) const {
    VecPlain a = *this;
    for (int i = 0; i < 16; ++i) a.v[i] -= b.v[i];
    return a;
  }
  VecPlain operator*(VecPlain b) const {
    VecPlain a = *this;
    for (int i = 0; i < 16; ++i) a.v[i] *= b.v[i];
    return a;
  }
  VecPlain operator/(VecPlain b) const {
    VecPlain a = *this;
    for (int i = 0; i < 16; ++i) a.v[i] /= b.v[i];
    return a;
  }
  static VecPlain max(VecPlain a, VecPlain b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  /// y where x >= limit or x is NaN, else 0.
  static VecPlain zero_below(VecPlain x, VecPlain limit, VecPlain y) {
    for (int i = 0; i < 16; ++i) y.v[i] = x.v[i] < limit.v[i] ? 0.0F : y.v[i];
    return y;
  }
  /// 2 to the integer in the low bits of `shifted`, whose exponent is that of 1.5 * 2^23.
  static VecPlain pow2(VecPlain shifted) {
    for (float& lane : shifted.v) {
      lane = std::bit_cast<float>((std::bit_cast<std::uint32_t>(lane) + 127U - 0x4B400000U) << 23);
    }
    return shifted;
  }
  float sum() const {
    float half[16];
    std::copy(v, v + 16, half);
    for (int n = 8; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) half[i] += half[i + n];
    }
    return half[0];
  }
  float largest() const { return *std::max_element(v, v + 16); }
  /// Fetches the cache line of p into the first-level cache; prefetch_far into the second. Other vectors say that they
  /// are inlined: GCC 12 takes a function that only fetches for one without any effect, and drops calls of it.
  static void prefetch(const void* /*p*/) {}
  static void prefetch_far(const void* /*p*/) {}
};

}  // namespace
}  // namespace genai::kernels
