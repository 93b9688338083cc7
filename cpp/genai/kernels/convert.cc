#include "genai/kernels/convert.h"

#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace genai::kernels {
namespace {

/// Shifting the exponent and mantissa into float32's place leaves the exponent 112 too small, which multiplying by
/// 2^112 repairs for normal and subnormal values alike.
float float16_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7FFFU) << 13;
  if ((half & 0x7C00U) == 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | magnitude);
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F));
}

void convert_float16_plain(const std::uint16_t* src, float* dst, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) dst[i] = float16_to_float(src[i]);
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void convert_float16_f16c(const std::uint16_t* src, float* dst, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
  }
  convert_float16_plain(src + i, dst + i, count - i);
}

__attribute__((target("avx512f"))) void convert_float16_avx512(const std::uint16_t* src, float* dst,
                                                               std::size_t count) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
    // The unmasked form makes GCC 12 warn inside its own header.
    _mm512_storeu_ps(dst + i, _mm512_maskz_cvtph_ps(0xFFFF, halves));
  }
  convert_float16_plain(src + i, dst + i, count - i);
}
#endif

/// The fastest within what chosen_isa() allows.
Float16Variant chosen_variant() {
  const Isa limit = chosen_isa();
  std::vector<Float16Variant> variants = float16_variants();
  while (variants.back().isa > limit) variants.pop_back();
  return variants.back();
}

}  // namespace

std::vector<Float16Variant> float16_variants() {
  std::vector<Float16Variant> variants = {{Isa::kPlain, convert_float16_plain}};
#if defined(__x86_64__)
  for (const Isa isa : supported_isas()) {
    if (isa == Isa::kAvx2) variants.push_back({isa, convert_float16_f16c});
    if (isa == Isa::kAvx512) variants.push_back({isa, convert_float16_avx512});
  }
#endif
  return variants;
}

void convert_float16(const std::uint16_t* src, float* dst, std::size_t count) {
  static const auto convert = chosen_variant().convert;
  convert(src, dst, count);
}

void convert_bfloat16(const std::uint16_t* src, float* dst, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) dst[i] = std::bit_cast<float>(static_cast<std::uint32_t>(src[i]) << 16);
}

}  // namespace genai::kernels
