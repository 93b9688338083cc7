#pragma once

// How rows of a product's activations become int8. Included by matmul_impl.h, and compiled with it for each instruction
// set.

#include "genai/kernels/matmul.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace genai::kernels {
namespace {

/// Over the lanes D of dot_<isa>.h.
template <typename D>
struct Quantizer {
  using V = typename D::Floats;
  using I = typename D::Ints;

  static void row(const float* x, std::int64_t steps, std::int64_t step_depth, std::int64_t row,
                  const QuantizedRows& out) {
    std::int64_t step = 0;
    if constexpr (D::kQuantizesMany) {
      if (step_depth == kManyDepth && steps >= kLanes) {
        for (; step + kLanes <= steps; step += kLanes) many(x, step, row, out);
        // Many of a rest are quantized with some of the blocks before them once more: that takes as long as 8 blocks.
        if (steps - step > kLanes / 2) return many(x, steps - kLanes, row, out);
      }
    }
    for (; step < steps; ++step) one(x + step * step_depth, step, step_depth, row, out);
  }

  /// A part of `count` <= 16 rows, x[count][32], as their first blocks of `step_depth`.
  static void part(const float* x, std::int64_t count, std::int64_t step_depth, const QuantizedRows& out) {
    if constexpr (D::kQuantizesMany) {
      if (step_depth == kManyDepth && count == kLanes) {
        return D::quantize_many(x, out.codes, out.stride, out.scales, out.offsets);
      }
    }
    for (std::int64_t m = 0; m < count; ++m) {
      row(x + m * kPanelColumns, kPanelColumns / step_depth, step_depth, m, out);
    }
  }

 private:
  /// Depth of the blocks of which D::quantize_many quantizes 16 at once.
  static constexpr std::int64_t kManyDepth = 32;

  /// 16 steps from `step` on.
  static void many(const float* x, std::int64_t step, std::int64_t row, const QuantizedRows& out) {
    std::array<float, kLanes> scales;
    std::array<std::int32_t, kLanes> offsets;
    const std::int64_t column = step * kManyDepth;
    D::quantize_many(x + column, out.codes + row * out.stride + column, kManyDepth, scales.data(), offsets.data());
    for (int i = 0; i < kLanes; ++i) {
      out.scales[(step + i) * out.padded + row] = scales[static_cast<std::size_t>(i)];
      out.offsets[(step + i) * out.padded + row] = offsets[static_cast<std::size_t>(i)];
    }
  }

  static void one(const float* x, std::int64_t step, std::int64_t step_depth, std::int64_t row,
                  const QuantizedRows& out) {
    V largest = V::zero();
    V poison = V::zero();  // NaN when there is an infinity or NaN, else 0
    for (std::int64_t k = 0; k < step_depth; k += kLanes) {
      const V v = V::load(x + k);
      largest = V::max(largest, V::max(v, V::zero() - v));
      poison = V::fma(v, V::zero(), poison);
    }
    const float size = largest.largest();
    constexpr float kMax = std::numeric_limits<float>::max();
    // Below 127 / kMax the factor would be infinite, and an activation of 0 no number.
    const float inverse = size > 127.0F / kMax && size <= kMax ? 127.0F / size : 0.0F;
    std::int8_t* const codes = out.codes + row * out.stride + step * step_depth;
    const V factor = V::set1(inverse);
    I sum = D::splat(0);
    for (std::int64_t k = 0; k < step_depth; k += kLanes) {
      sum = D::add(sum, D::quantize(V::load(x + k) * factor, codes + k));
    }
    out.scales[step * out.padded + row] = size / 127.0F + poison.sum();
    out.offsets[step * out.padded + row] = -8 * D::sum(sum);
  }
};

}  // namespace
}  // namespace genai::kernels
