#include "genai/kernels/convert.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

namespace genai::kernels {
namespace {

/// Value of a half by its definition: (-1)^sign * mantissa * 2^exponent.
float half_by_definition(std::uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  if (exponent == 0x1F) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : static_cast<float>(sign * std::numeric_limits<double>::infinity());
  }
  if (exponent == 0) return static_cast<float>(sign * std::ldexp(mantissa, -24));
  return static_cast<float>(sign * std::ldexp(1024 + mantissa, exponent - 25));
}

}  // namespace

TEST_CASE("Float16_EveryBitPattern_GivesTheExactValue") {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  for (const Float16Variant& variant : float16_variants()) {
    CAPTURE(std::string(isa_name(variant.isa)));
    std::vector<float> out(all.size());

    variant.convert(all.data(), out.data(), all.size());

    std::size_t wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float expected = half_by_definition(all[i]);
      const bool same = std::isnan(expected)
                            ? std::isnan(out[i])
                            : std::bit_cast<std::uint32_t>(expected) == std::bit_cast<std::uint32_t>(out[i]);
      if (!same) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("Float16_OddSizesAndStarts_WriteOnlyTheirRange") {
  std::vector<std::uint16_t> src(80);
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::uint16_t>(0x3C00 + i);
  for (const Float16Variant& variant : float16_variants()) {
    for (const std::size_t count : {0, 1, 7, 8, 9, 15, 16, 17, 31, 33}) {
      for (const std::size_t start : {0, 1, 3}) {
        CAPTURE(std::string(isa_name(variant.isa)));
        CAPTURE(count);
        CAPTURE(start);
        std::vector<float> out(80, -1.0F);

        variant.convert(src.data() + start, out.data() + start, count);

        for (std::size_t i = 0; i < out.size(); ++i) {
          const bool inside = i >= start && i < start + count;
          CHECK(out[i] == (inside ? half_by_definition(src[i]) : -1.0F));
        }
      }
    }
  }
}

TEST_CASE("BFloat16_Values_AreTheUpperHalfOfAFloat") {
  const std::vector<std::uint16_t> src = {0x3F80, 0xBF80, 0x0000, 0x7F80, 0x4049};
  std::vector<float> out(src.size());

  convert_bfloat16(src.data(), out.data(), src.size());

  CHECK(out == std::vector<float>{1.0F, -1.0F, 0.0F, std::numeric_limits<float>::infinity(), 3.140625F});
}

}  // namespace genai::kernels
