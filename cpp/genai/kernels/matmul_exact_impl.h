#pragma once

// Products in float32, written once over 16 lanes (dot_<isa>.h). Included by matmul_impl.h.

#include "genai/kernels/matmul.h"
#include "genai/kernels/unrolled.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace genai::kernels {
namespace {

constexpr std::int64_t kLine = 64;  ///< bytes
constexpr int kHalves = 2;          ///< of a panel

template <typename D>
struct ExactMatMul {
  using V = typename D::Floats;
  using I = typename D::Ints;

  /// Floats of `units` units into to[depth][32].
  static void unpack_exact(const PanelView& w, std::int64_t first_unit, std::int64_t units, float* to) {
    const std::int64_t chunks = w.unit_depth / kChunkDepth;
    const int half_lines = w.bits == 4 ? 4 : 8;
    const V base = V::set1(w.bits == 4 ? -8.0F : -128.0F);
    for (std::int64_t unit = first_unit; unit < first_unit + units; ++unit) {
      const std::byte* const lines = w.data + static_cast<std::size_t>(unit) * w.unit_bytes;
      for (std::size_t at = 0; at < w.unit_bytes; at += kLine) V::prefetch(lines + D::kPrefetchBytes + at);
      const auto* const scales = reinterpret_cast<const float*>(lines + chunks * kHalves * half_lines * kLine);
      for (std::int64_t k = 0; k < w.unit_depth; k += 4, to += 4 * kPanelColumns) {
        const std::int64_t chunk = k / kChunkDepth;
        const int j = static_cast<int>(k % kChunkDepth) / 4;
        const std::int64_t part = k / w.step_depth();
        for (int h = 0; h < kHalves; ++h) {
          const std::byte* const from = lines + ((chunk * kHalves + h) * half_lines + j % half_lines) * kLine;
          I line = D::load(from);
          if (w.bits == 4) line = j < 4 ? D::low_bits(line) : D::high_bits(line);
          const int column = h * kLanes;
          const V scale = V::load(scales + part * kPanelColumns + column);
          V shift = base;
          if (w.zero_points != nullptr) {
            const std::int64_t step = unit * w.scales_per_unit + part;
            shift = shift - V::load(w.zero_points + step * kPanelColumns + column);
          }
          ((D::template byte<0>(line) + shift) * scale).store(to + column);
          ((D::template byte<1>(line) + shift) * scale).store(to + kPanelColumns + column);
          ((D::template byte<2>(line) + shift) * scale).store(to + 2 * kPanelColumns + column);
          ((D::template byte<3>(line) + shift) * scale).store(to + 3 * kPanelColumns + column);
        }
      }
    }
  }

  template <int kRows>
  static void exact_tile(const float* slab, std::int64_t depth, const float* x, std::int64_t stride, float* out) {
    V sums[kRows][kHalves];
    unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
      sums[m][0] = V::load(out + m * kPanelColumns);
      sums[m][1] = V::load(out + m * kPanelColumns + kLanes);
    });
    for (std::int64_t k = 0; k < depth; ++k, slab += kPanelColumns) {
      const V low = V::load(slab);
      const V high = V::load(slab + kLanes);
      unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
        const V value = V::set1(x[m * stride + k]);
        sums[m][0] = V::fma(value, low, sums[m][0]);
        sums[m][1] = V::fma(value, high, sums[m][1]);
      });
    }
    unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
      sums[m][0].store(out + m * kPanelColumns);
      sums[m][1].store(out + m * kPanelColumns + kLanes);
    });
  }

  using ExactTile = void (*)(const float*, std::int64_t, const float*, std::int64_t, float*);
  template <std::size_t... kIndex>
  static constexpr std::array<ExactTile, sizeof...(kIndex)> exact_tiles(std::index_sequence<kIndex...>) {
    return {&exact_tile<static_cast<int>(kIndex) + 1>...};
  }
  static constexpr auto kExactTiles = exact_tiles(std::make_index_sequence<D::kExactRows>());

  static void multiply_exact(const PanelView& w, const float* x, std::int64_t stride, std::int64_t count, float* out,
                             std::byte* scratch) {
    constexpr std::int64_t kDepth = 256;
    static_assert(kDepth * kPanelColumns * sizeof(float) <= kMatMulScratchBytes);
    auto* const slab = reinterpret_cast<float*>(scratch);
    std::fill(out, out + count * kPanelColumns, 0.0F);
    const std::int64_t slab_units = kDepth / w.unit_depth;
    for (std::int64_t unit = 0; unit < w.units; unit += slab_units) {
      const std::int64_t units = std::min(slab_units, w.units - unit);
      unpack_exact(w, unit, units, slab);
      for (std::int64_t row = 0; row < count; row += D::kExactRows) {
        const std::int64_t rows = std::min<std::int64_t>(D::kExactRows, count - row);
        kExactTiles[static_cast<std::size_t>(rows - 1)](
            slab, units * w.unit_depth, x + row * stride + unit * w.unit_depth, stride, out + row * kPanelColumns);
      }
    }
  }
};

}  // namespace
}  // namespace genai::kernels
