#include "genai/kernels/matmul.h"
#include "genai/kernels/test_numbers.h"
#include "genai/kernels/vec_element.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace genai::kernels {
namespace {

TEST_CASE("normalised rows equal those in float64, and their sums are kept") {
  constexpr float kEpsilon = 1e-5F;
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    for (const std::int64_t count : {1, 15, 16, 17, 31, 32, 33, 96, 575, 576}) {
      CAPTURE(isa_name(isa));
      CAPTURE(count);
      const std::int64_t padded = (count + 31) / 32 * 32;
      const std::vector<float> random = random_numbers(3 * count);
      const float* const source = random.data();
      const float* const skip = source + count;
      const float* const weight = skip + count;
      for (const bool has_skip : {false, true}) {
        for (const ElementKind kind : {ElementKind::kFloat32, ElementKind::kFloat16}) {
          const auto elements = static_cast<std::size_t>(count);
          std::vector<Half> halves(3 * elements + 1, Half{0x1234});
          for (std::size_t i = 0; i < 2 * elements; ++i) from_float(random[i], &halves[i]);
          std::vector<float> sum(elements + 1, 7.0F);
          std::vector<float> row(static_cast<std::size_t>(padded), 7.0F);
          const bool is_half = kind == ElementKind::kFloat16;
          RowNorm norm{kind, count, kEpsilon, weight, source, has_skip ? skip : nullptr, sum.data()};
          if (is_half) {
            norm.source = halves.data();
            norm.skip = has_skip ? halves.data() + count : nullptr;
            norm.sum = halves.data() + 2 * count;
          }
          kernels.normalise_row(norm, padded, row.data());

          std::vector<double> x(elements);
          double squares = 0;
          for (std::size_t i = 0; i < elements; ++i) {
            x[i] = is_half ? double{to_float(halves[i])} : double{source[i]};
            if (has_skip) x[i] += is_half ? double{to_float(halves[elements + i])} : double{skip[i]};
            squares += x[i] * x[i];
          }
          double worst = 0;
          for (std::size_t i = 0; i < elements; ++i) {
            const double wanted =
                x[i] / std::sqrt(squares / static_cast<double>(count) + double{kEpsilon}) * double{weight[i]};
            // Of a handful of roundings, and of a sum of squares in 32 lanes.
            worst = std::max(worst, std::fabs(double{row[i]} - wanted) / (std::fabs(wanted) + 1e-30));
            if (!has_skip) continue;
            const double kept = is_half ? double{to_float(halves[2 * elements + i])} : double{sum[i]};
            CHECK(std::fabs(kept - x[i]) <= (is_half ? 0x1p-11 : 0x1p-24) * std::fabs(x[i]) + 0x1p-25);
          }
          CHECK(worst <= 32 * 0x1p-24);
          CHECK(std::all_of(row.begin() + count, row.end(), [](float value) { return value == 0.0F; }));
          CHECK(sum.back() == 7.0F);
          CHECK(halves.back().bits == 0x1234);
        }
      }
    }
  }
}

}  // namespace
}  // namespace genai::kernels
