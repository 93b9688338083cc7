#pragma once

// The matrix kernels, written once over 16 lanes of integers and floats (dot_<isa>.h). Included by matmul_<isa>.cc,
// each time compiled for that instruction set; all names are local to the file that includes it.

#include "genai/kernels/matmul.h"
#include "genai/kernels/matmul_exact_impl.h"
#include "genai/kernels/quantize_impl.h"
#include "genai/kernels/rows_impl.h"
#include "genai/kernels/unrolled.h"
#include "genai/kernels/vec_element.h"
#include "genai/kernels/vec_math.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace genai::kernels {
namespace {

/// The dot product of `D::Ints` lanes with four int8 each is D::dot, for codes below 16, or D::dot8. Where D::kSigned8,
/// dot8 takes codes as code - 128.
template <typename D>
struct MatMul {
  using V = typename D::Floats;
  using I = typename D::Ints;
  /// A tile has a multiple of so many rows.
  static constexpr int kRowUnit = D::kPairs ? 2 : 1;

  // ---- int8 ----

  /// Adds a step's integers, times their scales, to the sums. `scales` and `zeros` are those of the step from the first
  /// half that is computed; zeros may be nullptr. add_to(h, m, value, factor) adds value * factor to a sum.
  template <typename Scale, typename Zero, int kHalfCount, int kRows, typename AddTo>
  [[gnu::always_inline]] static void finish_step(const QuantizedRows& x, std::int64_t step, std::int64_t row,
                                                 const Scale* scales, const Zero* zeros,
                                                 const I (&dots)[kHalfCount][kRows], const AddTo& add_to) {
    const float* const row_scales = x.scales + step * x.padded + row;
    const std::int32_t* const offsets = x.offsets + step * x.padded + row;
    unrolled<kHalfCount>([&](auto h) __attribute__((always_inline)) {
      const V scale = V::load(scales + h * kLanes);
      if (zeros == nullptr) {
        unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
          add_to(h, m, D::to_float(dots[h][m]) * scale, V::set1(row_scales[m]));
        });
      } else {
        const V zero = V::load(zeros + h * kLanes);
        unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
          const V value = V::fma(zero, V::set1(static_cast<float>(offsets[m]) * 0.125F), D::to_float(dots[h][m]));
          add_to(h, m, value * scale, V::set1(row_scales[m]));
        });
      }
    });
  }

  /// Sums in registers.
  template <int kHalfCount, int kRows>
  static auto to_registers(V (&sums)[kHalfCount][kRows]) {
    return [&sums](int h, int m, V value, V factor)
               __attribute__((always_inline)) { sums[h][m] = V::fma(value, factor, sums[h][m]); };
  }

  template <int kBits>
  [[gnu::always_inline]] static I dot(I sum, I codes, const std::int8_t* four) {
    if constexpr (kBits == 4) {
      return D::dot(sum, codes, four);
    } else {
      return D::dot8(sum, codes, four);
    }
  }

  /// Of a row's offset, what a sum of its codes starts with.
  template <int kBits>
  static constexpr std::int32_t offset_factor() {
    return kBits == 4 ? 1 : D::kSigned8 ? 0 : 16;
  }

  /// Starts the sums of a step such that they end as sums of (code - 2^(bits - 1)) * activation.
  template <int kBits, int kHalfCount, int kRows>
  [[gnu::always_inline]] static void start_step(const QuantizedRows& x, std::int64_t step, std::int64_t row,
                                                I (&out)[kHalfCount][kRows]) {
    const std::int32_t* const offsets = x.offsets + step * x.padded + row;
    unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
      const I start = D::splat(offset_factor<kBits>() * offsets[m]);
      unrolled<kHalfCount>([&](auto h) __attribute__((always_inline)) { out[h][m] = start; });
    });
  }

  /// Adds four of depth, one line of each half.
  template <int kBits, int kHalfCount, int kRows>
  [[gnu::always_inline]] static void add_line(const I (&line)[kHalfCount], const std::int8_t* codes,
                                              std::int64_t stride, I (&out)[kHalfCount][kRows]) {
    unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
      const std::int8_t* const four = codes + m * stride;
      unrolled<kHalfCount>([&](auto h)
                               __attribute__((always_inline)) { out[h][m] = dot<kBits>(out[h][m], line[h], four); });
    });
  }

  /// Adds one chunk: `lines` of the first half, `next_half` bytes before those of the second. kPart: -1 all of it, 0 or
  /// 1 a block of 16.
  template <int kBits, bool kUnpacked, int kPart, int kHalfCount, int kRows>
  [[gnu::always_inline]] static void add_chunk(const std::byte* lines, std::ptrdiff_t next_half,
                                               const std::int8_t* codes, std::int64_t stride,
                                               I (&out)[kHalfCount][kRows]) {
    if constexpr (kBits == 4 && !kUnpacked && D::kWideRows > 0 && kHalfCount * kRows > D::kWideRows) {
      // Half of the codes after the other, so that few registers hold them.
      unrolled<8>([&](auto i) __attribute__((always_inline)) {
        constexpr int kJ = i / 2;
        constexpr bool kHigh = i % 2 == 1;
        I line[kHalfCount];
        unrolled<kHalfCount>([&](auto h) __attribute__((always_inline)) {
          const I both = D::load(lines + h * next_half + kJ * kLine);
          line[h] = kHigh ? D::high_bits(both) : D::low_bits(both);
        });
        add_line<4>(line, codes + 4 * kJ + (kHigh ? 16 : 0), stride, out);
      });
    } else if constexpr (kBits == 4 && !kUnpacked) {
      unrolled<4>([&](auto j) __attribute__((always_inline)) {
        unrolled<kHalfCount>([&](auto h) __attribute__((always_inline)) {
          const I both = D::load(lines + h * next_half + j * kLine);
          const I low = D::low_bits(both);
          const I high = D::high_bits(both);
          unrolled<kRows>([&](auto m) __attribute__((always_inline)) {
            const std::int8_t* const four = codes + m * stride + 4 * j;
            out[h][m] = dot<4>(dot<4>(out[h][m], low, four), high, four + 16);
          });
        });
      });
    } else if constexpr (kUnpacked && D::kPairs) {
      static_assert(kRows == kRowUnit);
      constexpr int kFirst = kPart == 1 ? 4 : 0;
      constexpr int kCount = kPart == -1 ? 4 : 2;
      unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
        constexpr int kJ = kFirst + 2 * decltype(i)::value;
        unrolled<kHalfCount>([&](auto h) __attribute__((always_inline)) {
          D::dot_pair(out[h][0], out[h][1], lines + h * next_half + kJ * kLine, codes + 4 * kJ, stride);
        });
      });
    } else {
      constexpr int kFirst = kPart == 1 ? 4 : 0;
      constexpr int kCount = kPart == -1 ? 8 : 4;
      unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
        constexpr int kJ = kFirst + decltype(i)::value;
        I line[kHalfCount];
        unrolled<kHalfCount>(
            [&](auto h) __attribute__((always_inline)) { line[h] = D::load(lines + h * next_half + kJ * kLine); });
        add_line<kBits>(line, codes + 4 * kJ, stride, out);
      });
    }
  }

  /// kRows rows straight from the packed codes; not for blocks of 16. Sums that leave no registers stay in out.
  template <int kBits, int kRows>
  static void direct(const PanelView& w, const QuantizedRows& x, std::int64_t row, float* out) {
    constexpr bool kInMemory = kRows > D::kDirectRows;
    constexpr int kHalfCount = D::kWideRows > 0 || kRows <= D::kDirectRows / 2 ? 2 : 1;
    constexpr std::int64_t kHalfBytes = (kBits == 4 ? 4 : 8) * kLine;
    const std::int64_t chunks = w.unit_depth / kChunkDepth;
    if constexpr (kInMemory) std::fill_n(out, kRows * kPanelColumns, 0.0F);
    for (int first = 0; first < kHalves; first += kHalfCount) {
      const int column = first * kLanes;
      V sums[kHalfCount][kRows];
      const auto each = [](const auto& body) __attribute__((always_inline)) {
        if constexpr (kInMemory) return;
        unrolled<kHalfCount>([&](auto h) __attribute__((always_inline)) {
          unrolled<kRows>([&](auto m) __attribute__((always_inline)) { body(h, m); });
        });
      };
      each([&](auto h, auto m) __attribute__((always_inline)) { sums[h][m] = V::zero(); });
      for (std::int64_t unit = 0; unit < w.units; ++unit) {
        const std::byte* const lines = w.data + static_cast<std::size_t>(unit) * w.unit_bytes;
        for (std::size_t at = 0; at < w.unit_bytes; at += kLine) V::prefetch(lines + D::kPrefetchBytes + at);
        const std::int8_t* const codes = x.codes + row * x.stride + unit * w.unit_depth;
        I dots[kHalfCount][kRows];
        start_step<kBits>(x, unit, row, dots);
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
          add_chunk<kBits, false, -1>(lines + (chunk * kHalves + first) * kHalfBytes, kHalfBytes,
                                      codes + chunk * kChunkDepth, x.stride, dots);
        }
        const auto* const scales = reinterpret_cast<const Half*>(lines + chunks * kHalves * kHalfBytes) + column;
        const std::int8_t* const zeros =
            w.zero_points == nullptr ? nullptr : w.zero_points + unit * kPanelColumns + column;
        if constexpr (kInMemory) {
          __asm__ volatile("" ::: "memory");  // else the compiler moves the sums to registers, and those to the stack
          finish_step(x, unit, row, scales, zeros, dots,
                      [out](int h, int m, V value, V factor) __attribute__((always_inline)) {
                        float* const sum = out + m * kPanelColumns + h * kLanes;
                        V::fma(value, factor, V::load(sum)).store(sum);
                      });
        } else {
          finish_step(x, unit, row, scales, zeros, dots, to_registers(sums));
        }
      }
      each([&](auto h, auto m)
               __attribute__((always_inline)) { sums[h][m].store(out + m * kPanelColumns + column + h * kLanes); });
    }
  }

  /// Part of a panel with a byte for each code; in a thread's scratch.
  struct Slab {
    static constexpr std::int64_t kDepth = 1024;
    static constexpr std::int64_t kMaxSteps = kDepth / 16;

    std::byte* codes;  ///< [2][depth / 32][8 lines]
    float* scales;     ///< [steps][32]
    float* zeros;      ///< [steps][32], less 2^(bits - 1)
    bool has_zeros = false;
    std::int64_t depth = 0;
    std::int64_t first_step = 0;
    std::int64_t steps = 0;

    explicit Slab(std::byte* scratch)
        : codes(scratch),
          scales(reinterpret_cast<float*>(scratch + kDepth * kPanelColumns)),
          zeros(scales + kMaxSteps * kPanelColumns) {}
    std::int64_t half_bytes() const { return depth * kLanes; }
  };
  static_assert(Slab::kDepth * kPanelColumns + 2 * Slab::kMaxSteps * kPanelColumns * 4 <=
                static_cast<std::int64_t>(kMatMulScratchBytes));

  template <int kBits>
  [[gnu::always_inline]] static void store_lines(I first, I second, std::byte* to) {
    if constexpr (D::kPairs) {
      D::template store_pair<kBits>(first, second, to);
    } else {
      D::store(first, to);
      D::store(second, to + kLine);
    }
  }

  static void unpack(const PanelView& w, std::int64_t first_unit, std::int64_t units, Slab& slab) {
    slab.depth = units * w.unit_depth;
    slab.first_step = first_unit * w.scales_per_unit;
    slab.steps = units * w.scales_per_unit;
    slab.has_zeros = w.zero_points != nullptr;
    const std::int64_t chunks = w.unit_depth / kChunkDepth;
    const std::int64_t half_lines = w.bits == 4 ? 4 : 8;
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const std::byte* from = w.data + static_cast<std::size_t>(first_unit + unit) * w.unit_bytes;
      for (std::size_t at = 0; at < w.unit_bytes; at += kLine) V::prefetch(from + D::kPrefetchBytes + at);
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        for (int h = 0; h < kHalves; ++h) {
          std::byte* const to = slab.codes + h * slab.half_bytes() + (unit * chunks + chunk) * 8 * kLine;
          for (std::int64_t j = 0; j < half_lines; j += 2, from += 2 * kLine) {
            const I first = D::load(from);
            const I second = D::load(from + kLine);
            if (w.bits == 4) {
              store_lines<4>(D::low_bits(first), D::low_bits(second), to + j * kLine);
              store_lines<4>(D::high_bits(first), D::high_bits(second), to + (j + 4) * kLine);
            } else {
              store_lines<8>(first, second, to + j * kLine);
            }
          }
        }
      }
      const std::int64_t at = unit * w.scales_per_unit * kPanelColumns;
      for (int c = 0; c < w.scales_per_unit * kPanelColumns; c += kLanes) {
        V::load(reinterpret_cast<const Half*>(from) + c).store(slab.scales + at + c);
        if (w.zero_points != nullptr) {
          V::load(w.zero_points + slab.first_step * kPanelColumns + at + c).store(slab.zeros + at + c);
        }
      }
    }
  }

  /// Where rows are computed in pairs: sums by row become sums by pairs of rows and columns, or those by row.
  template <int kRows>
  [[gnu::always_inline]] static void swap_pairs(I (&dots)[kHalves][kRows]) {
    if constexpr (D::kPairs) {
      unrolled<kHalves>([&](auto h) __attribute__((always_inline)) { D::swap_pair(dots[h][0], dots[h][1]); });
    }
  }

  /// Adds a slab's part to out[kRows][32].
  template <int kBits, bool kBlock16, int kRows>
  static void tile(const Slab& slab, std::int64_t step_depth, const QuantizedRows& x, std::int64_t row, float* out) {
    V sums[kHalves][kRows];
    const auto each = [](const auto& body) __attribute__((always_inline)) {
      unrolled<kHalves>([&](auto h) __attribute__((always_inline)) {
        unrolled<kRows>([&](auto m) __attribute__((always_inline)) { body(h, m); });
      });
    };
    each([&](auto h, auto m)
             __attribute__((always_inline)) { sums[h][m] = V::load(out + m * kPanelColumns + h * kLanes); });
    const std::int8_t* const codes = x.codes + row * x.stride + slab.first_step * step_depth;
    const auto run = [&]<int kPart>(std::int64_t at, std::int64_t chunk, std::int64_t chunks,
                                    std::integral_constant<int, kPart>) __attribute__((always_inline)) {
      const std::int64_t step = slab.first_step + at;
      I dots[kHalves][kRows];
      start_step<kBits>(x, step, row, dots);
      swap_pairs(dots);
      for (const std::int64_t end = chunk + chunks; chunk < end; ++chunk) {
        add_chunk<kBits, true, kPart>(slab.codes + chunk * 8 * kLine, slab.half_bytes(), codes + chunk * kChunkDepth,
                                      x.stride, dots);
      }
      swap_pairs(dots);
      const float* const zeros = slab.has_zeros ? slab.zeros + at * kPanelColumns : nullptr;
      finish_step(x, step, row, slab.scales + at * kPanelColumns, zeros, dots, to_registers(sums));
    };
    if constexpr (kBlock16) {
      for (std::int64_t at = 0; at < slab.steps; at += 2) {
        run(at, at / 2, 1, std::integral_constant<int, 0>());
        run(at + 1, at / 2, 1, std::integral_constant<int, 1>());
      }
    } else {
      const std::int64_t chunks = step_depth / kChunkDepth;
      for (std::int64_t at = 0; at < slab.steps; ++at) run(at, at * chunks, chunks, std::integral_constant<int, -1>());
    }
    each([&](auto h, auto m)
             __attribute__((always_inline)) { sums[h][m].store(out + m * kPanelColumns + h * kLanes); });
  }

  using Direct = void (*)(const PanelView&, const QuantizedRows&, std::int64_t, float*);
  using Tile = void (*)(const Slab&, std::int64_t, const QuantizedRows&, std::int64_t, float*);

  /// The functions for 1, 2, ... rows; tiles for as many times kRowUnit.
  template <int kBits, std::size_t... kIndex>
  static constexpr std::array<Direct, sizeof...(kIndex)> directs(std::index_sequence<kIndex...>) {
    return {&direct<kBits, static_cast<int>(kIndex) + 1>...};
  }
  template <int kBits, bool kBlock16, std::size_t... kIndex>
  static constexpr std::array<Tile, sizeof...(kIndex)> tiles(std::index_sequence<kIndex...>) {
    return {&tile<kBits, kBlock16, (static_cast<int>(kIndex) + 1) * kRowUnit>...};
  }
  static constexpr auto kDirectIndex = std::make_index_sequence<std::max(D::kDirectRows, D::kWideRows)>();
  static constexpr auto kTileIndex = std::make_index_sequence<D::kTileRows / kRowUnit>();
  static constexpr std::array kDirects = {directs<4>(kDirectIndex), directs<8>(kDirectIndex)};
  static constexpr std::array kTiles = {std::array{tiles<4, false>(kTileIndex), tiles<4, true>(kTileIndex)},
                                        std::array{tiles<8, false>(kTileIndex), tiles<8, true>(kTileIndex)}};

  /// Calls body(begin, size) for even portions of at most `most`: 9 are 5 + 4 and 6 are 3 + 3.
  template <typename Body>
  static void in_portions(std::int64_t count, std::int64_t most, const Body& body) {
    const std::int64_t portions = (count + most - 1) / most;
    for (std::int64_t p = 0; p < portions; ++p) {
      const std::int64_t begin = count * p / portions;
      body(begin, count * (p + 1) / portions - begin);
    }
  }

  /// Up to so many rows it is faster to unpack the codes for each portion of them than once into a slab.
  static constexpr std::int64_t kMostWideRows = 96;

  static void multiply(const PanelView& w, const QuantizedRows& x, std::int64_t first, std::int64_t count, float* out,
                       std::byte* scratch) {
    const std::size_t bits = w.bits == 8 ? 1 : 0;
    const bool block16 = w.scales_per_unit == 2;
    if (count <= D::kDirectRows && !block16) {
      return kDirects[bits][static_cast<std::size_t>(count - 1)](w, x, first, out);
    }
    if constexpr (D::kWideRows > 0) {
      if (count <= kMostWideRows && !block16) {
        return in_portions(count, D::kWideRows, [&](std::int64_t row, std::int64_t some) {
          kDirects[bits][static_cast<std::size_t>(some - 1)](w, x, first + row, out + row * kPanelColumns);
        });
      }
    }
    const auto& tiles = kTiles[bits][block16 ? 1 : 0];
    // With pairs, the row behind an odd last one is computed too: there is one, as rows are padded to 16.
    const std::int64_t row_units = (count + kRowUnit - 1) / kRowUnit;
    std::fill(out, out + row_units * kRowUnit * kPanelColumns, 0.0F);
    Slab slab(scratch);
    const std::int64_t slab_units = Slab::kDepth / w.unit_depth;
    for (std::int64_t unit = 0; unit < w.units; unit += slab_units) {
      unpack(w, unit, std::min(slab_units, w.units - unit), slab);
      in_portions(row_units, D::kTileRows / kRowUnit, [&](std::int64_t begin, std::int64_t some) {
        const std::int64_t row = begin * kRowUnit;
        tiles[static_cast<std::size_t>(some - 1)](slab, w.step_depth(), x, first + row, out + row * kPanelColumns);
      });
    }
  }

  // ---- results ----

  /// 16 columns of a row, from `at` on.
  [[gnu::always_inline]] static V finished(const float* result, std::int64_t m, std::int64_t at,
                                           const PanelOutput& output) {
    V value = V::load(result + m * kPanelColumns + at) * V::load(output.scale + at);
    if (output.bias != nullptr) value = value + V::load(output.bias + at);
    if (output.gate == nullptr) return value;
    V gate = V::load(output.gate + m * kPanelColumns + at) * V::load(output.gate_scale + at);
    if (output.gate_bias != nullptr) gate = gate + V::load(output.gate_bias + at);
    return silu_of(gate) * value;
  }

  static void store_quantized(const float* result, std::int64_t count, const PanelOutput& output) {
    alignas(kLine) float values[kLanes * kPanelColumns];
    QuantizedRows to = output.quantized;
    for (std::int64_t row = 0; row < count; row += kLanes) {
      const std::int64_t some = std::min<std::int64_t>(kLanes, count - row);
      for (std::int64_t m = 0; m < some; ++m) {
        for (int c = 0; c < kPanelColumns; c += kLanes) {
          finished(result, row + m, c, output).store(values + m * kPanelColumns + c);
        }
      }
      Quantizer<D>::part(values, some, output.step_depth, to);
      to.codes += kLanes * to.stride;
      to.scales += kLanes;
      to.offsets += kLanes;
    }
  }

  template <typename T>
  static void store_rows(const float* result, std::int64_t count, const PanelOutput& output) {
    T* to = static_cast<T*>(output.data);
    for (std::int64_t m = 0; m < count; ++m, to += output.stride) {
      for (std::int64_t c = 0; c < output.columns; c += kLanes) {
        const V value = finished(result, m, c, output);
        if (output.columns - c >= kLanes) {
          value.store(to + c);
        } else {
          T rest[kLanes];
          value.store(rest);
          std::copy(rest, rest + (output.columns - c), to + c);
        }
      }
    }
  }

  static void store(const float* result, std::int64_t count, const PanelOutput& output) {
    if (output.quantized.codes != nullptr) {
      store_quantized(result, count, output);
    } else if (output.kind == ElementKind::kFloat16) {
      store_rows<Half>(result, count, output);
    } else {
      store_rows<float>(result, count, output);
    }
  }

  static constexpr MatMulKernels kTable = {&Rows<V>::load,
                                           &Rows<V>::normalise,
                                           &Quantizer<D>::row,
                                           &multiply,
                                           &ExactMatMul<D>::multiply_exact,
                                           &store,
                                           nullptr,
                                           nullptr};
};

}  // namespace
}  // namespace genai::kernels
