#include "genai/kernels/vec_element.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace genai::kernels {
namespace {

/// The value of a finite half by its definition.
double half_value(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 0x1FU);
  const double fraction = static_cast<double>(bits & 0x3FFU) / 1024.0;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1.0 + fraction, exponent - 15);
  return bits & 0x8000U ? -magnitude : magnitude;
}

std::uint16_t to_half(float x) {
  Half half{};
  from_float(x, &half);
  return half.bits;
}

std::uint16_t to_bhalf(float x) {
  BHalf half{};
  from_float(x, &half);
  return half.bits;
}

TEST_CASE("ToFloat_EveryFiniteHalf_IsItsValueAndComesBack") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    if ((bits & 0x7C00U) == 0x7C00U) continue;
    const Half half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    if (static_cast<double>(value) != half_value(bits) || to_half(value) != bits) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("FromFloat_BetweenTwoHalves_RoundsToNearestTiesToEven") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7BFFU; ++bits) {
    const auto low = static_cast<float>(half_value(bits));
    const auto high = static_cast<float>(half_value(bits + 1));
    const float middle = (low + high) / 2;  // exact: both have 11 bits
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    if (to_half(middle) != even) ++wrong;
    if (to_half(std::nextafter(middle, low)) != bits) ++wrong;
    if (to_half(std::nextafter(middle, high)) != bits + 1) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("FromFloat_LargeInfiniteOrNan_KeepsItsKind") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(to_half(65519.0F) == 0x7BFF);
  CHECK(to_half(65520.0F) == 0x7C00);
  CHECK(to_half(-infinity) == 0xFC00);
  CHECK(std::isnan(to_float(Half{to_half(std::nanf(""))})));
  CHECK(to_float(Half{0x7C00}) == infinity);
  CHECK(to_bhalf(infinity) == 0x7F80);
  CHECK(to_bhalf(std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(std::isnan(to_float(BHalf{to_bhalf(std::bit_cast<float>(0x7F800001U))})));
}

TEST_CASE("FromFloat_BFloat16_RoundsToNearestTiesToEven") {
  CHECK(to_bhalf(1.0F) == 0x3F80);
  CHECK(to_bhalf(std::bit_cast<float>(0x3F808000U)) == 0x3F80);  // halfway, even below
  CHECK(to_bhalf(std::bit_cast<float>(0x3F818000U)) == 0x3F82);  // halfway, even above
  CHECK(to_bhalf(std::bit_cast<float>(0x3F808001U)) == 0x3F81);
  CHECK(to_float(BHalf{0xC040}) == -3.0F);
}

}  // namespace
}  // namespace genai::kernels
