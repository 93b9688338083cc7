#pragma once

#include "genai/kernels/vec_element.h"

#include <arm_neon.h>

namespace genai::kernels {
namespace {

/// 16 floats in four registers; as VecPlain.
struct VecNeon {
  static constexpr int kMaxRows = 6;
  static constexpr int columns(int rows) { return rows <= 3 ? 2 : 1; }

  float32x4_t v[4];

  static VecNeon load(const float* p) {
    return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
  }
  static VecNeon load(const Half* p) {
    const auto* const bits = reinterpret_cast<const std::uint16_t*>(p);
    VecNeon r;
    for (int i = 0; i < 4; ++i) r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bits + 4 * i)));
    return r;
  }
  static VecNeon load(const BHalf* p) {
    const auto* const bits = reinterpret_cast<const std::uint16_t*>(p);
    VecNeon r;
    for (int i = 0; i < 4; ++i) r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(bits + 4 * i), 16));
    return r;
  }
  static VecNeon load(const std::int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
    const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  void store(float* p) const {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v[i]);
  }
  void store(Half* p) const {
    auto* const bits = reinterpret_cast<std::uint16_t*>(p);
    for (int i = 0; i < 4; ++i) vst1_u16(bits + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v[i])));
  }
  static VecNeon set1(float x) { return {{vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)}}; }
  static VecNeon zero() { return set1(0.0F); }
  static VecNeon fma(VecNeon a, VecNeon b, VecNeon c) {
    for (int i = 0; i < 4; ++i) c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
  }
  VecNeon operator+(VecNeon b) const {
    VecNeon a = *this;
    for (int i = 0; i < 4; ++i) a.v[i] = vaddq_f32(a.v[i], b.v[i]);
    return a;
  }
  VecNeon operator-(VecNeon b) const {
    VecNeon a = *this;
    for (int i = 0; i < 4; ++i) a.v[i] = vsubq_f32(a.v[i], b.v[i]);
    return a;
  }
  VecNeon operator*(VecNeon b) const {
    VecNeon a = *this;
    for (int i = 0; i < 4; ++i) a.v[i] = vmulq_f32(a.v[i], b.v[i]);
    return a;
  }
  VecNeon operator/(VecNeon b) const {
    VecNeon a = *this;
    for (int i = 0; i < 4; ++i) a.v[i] = vdivq_f32(a.v[i], b.v[i]);
    return a;
  }
  static VecNeon max(VecNeon a, VecNeon b) {
    for (int i = 0; i < 4; ++i) a.v[i] = vmaxq_f32(a.v[i], b.v[i]);
    return a;
  }
  static VecNeon zero_below(VecNeon x, VecNeon limit, VecNeon y) {
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t below = vcltq_f32(x.v[i], limit.v[i]);
      y.v[i] = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y.v[i]), below));
    }
    return y;
  }
  static VecNeon pow2(VecNeon shifted) {
    for (float32x4_t& four : shifted.v) {
      const int32x4_t exponent = vaddq_s32(vreinterpretq_s32_f32(four), vdupq_n_s32(127 - 0x4B400000));
      four = vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
    }
    return shifted;
  }
  float sum() const { return vaddvq_f32(vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]))); }
  float largest() const { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v[0], v[2]), vmaxq_f32(v[1], v[3]))); }
  [[gnu::always_inline]] static void prefetch(const void* p) { __builtin_prefetch(p); }
  [[gnu::always_inline]] static void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
};

}  // namespace
}  // namespace genai::kernels
