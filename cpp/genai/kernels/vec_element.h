#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

// Elements of KV and of graph tensors that C++ has no type for, and their conversion one by one.
namespace genai::kernels {

struct Half {
  std::uint16_t bits;
};
struct BHalf {
  std::uint16_t bits;
};

inline float to_float(float x) {
  return x;
}
inline float to_float(BHalf x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
inline float to_float(std::int8_t x) {
  return static_cast<float>(x);
}
inline float to_float(Half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
  const std::uint32_t rest = x.bits & 0x7FFFU;
  if (rest >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | (rest & 0x3FFU) << 13);
  // The exponent field moved into place and scaled by 2^112; subnormals come out right as well.
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

/// Rounded to nearest, ties to even; too large values become infinite.
inline void from_float(float x, float* out) {
  *out = x;
}
inline void from_float(float x, BHalf* out) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    out->bits = static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  } else {
    out->bits = static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
  }
}
inline void from_float(float x, Half* out) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t result = 0;
  if (magnitude > 0x7F800000U) {
    result = 0x7E00U | (magnitude >> 13 & 0x3FFU);
  } else if (magnitude >= 0x477FF000U) {
    result = 0x7C00U;
  } else if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    result = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U;
  } else {
    const std::uint32_t odd = magnitude >> 13 & 1U;
    result = (magnitude - 0x38000000U + 0xFFFU + odd) >> 13;
  }
  out->bits = static_cast<std::uint16_t>(sign | result);
}

}  // namespace genai::kernels
