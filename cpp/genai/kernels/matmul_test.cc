#include "genai/kernels/matmul.h"

#include "genai/kernels/vec_element.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace genai::kernels {
namespace {

/// Weights with their values in float64.
struct Example {
  NBitsWeights weights;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  std::vector<std::uint8_t> zero_points;
  std::vector<double> values;  ///< [N, K]

  Example(std::int64_t columns, std::int64_t depth, int bits, std::int64_t block, bool with_zero_points) {
    weights.depth = depth;
    weights.columns = columns;
    weights.bits = bits;
    weights.block = block;
    const std::int64_t blocks = weights.blocks();
    std::uint64_t state = 7;
    const auto next = [&] {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      return static_cast<std::uint32_t>(state >> 33);
    };
    codes.resize(static_cast<std::size_t>(columns * blocks * block * bits / 8));
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(next());
    scales.resize(static_cast<std::size_t>(columns * blocks));
    // Exact in float16, of both signs and of many sizes.
    for (float& scale : scales) {
      scale =
          std::ldexp(static_cast<float>(static_cast<int>(next() % 2001U) - 1000), -17 - static_cast<int>(next() % 3U));
    }
    const std::int64_t zero_row = (blocks * bits + 7) / 8;
    if (with_zero_points) {
      zero_points.resize(static_cast<std::size_t>(columns * zero_row));
      for (std::uint8_t& zero : zero_points) zero = static_cast<std::uint8_t>(next());
    }
    weights.codes = codes;
    weights.scales = scales;
    weights.zero_points = zero_points;
    values.resize(static_cast<std::size_t>(columns * depth));
    for (std::int64_t n = 0; n < columns; ++n) {
      for (std::int64_t k = 0; k < depth; ++k) {
        const std::int64_t at = n * blocks * block + k;
        const std::int64_t b = k / block;
        int code = codes[static_cast<std::size_t>(bits == 8 ? at : at / 2)];
        if (bits == 4) code = code >> (at % 2 * 4) & 15;
        int zero = 1 << (bits - 1);
        if (with_zero_points) {
          zero = zero_points[static_cast<std::size_t>(n * zero_row + (bits == 8 ? b : b / 2))];
          if (bits == 4) zero = zero >> (b % 2 * 4) & 15;
        }
        values[static_cast<std::size_t>(n * depth + k)] =
            (code - zero) * double{scales[static_cast<std::size_t>(n * blocks + b)]};
      }
    }
  }
};

std::vector<float> random_rows(std::int64_t rows, std::int64_t depth, std::int64_t padded) {
  std::vector<float> x(static_cast<std::size_t>(rows * padded), 0.0F);
  std::uint64_t state = 99;
  for (std::int64_t m = 0; m < rows; ++m) {
    for (std::int64_t k = 0; k < depth; ++k) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      x[static_cast<std::size_t>(m * padded + k)] =
          static_cast<float>(static_cast<std::int64_t>(state >> 40) - (1 << 23)) * 0x1p-22F;
    }
  }
  return x;
}

/// Owned rows in int8.
struct Rows {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> offsets;
  QuantizedRows view;

  Rows(const MatMulKernels& kernels, const std::vector<float>& x, std::int64_t rows, const PanelView& shape) {
    view.padded = (rows + 15) / 16 * 16;
    view.stride = (shape.depth + 63) / 64 * 64;
    codes.assign(static_cast<std::size_t>(view.padded * view.stride), 0);
    scales.assign(static_cast<std::size_t>(view.padded * shape.steps()), 0.0F);
    offsets.assign(static_cast<std::size_t>(view.padded * shape.steps()), 0);
    view.codes = codes.data();
    view.scales = scales.data();
    view.offsets = offsets.data();
    for (std::int64_t m = 0; m < rows; ++m) {
      kernels.quantize_row(x.data() + m * shape.depth, shape.steps(), shape.step_depth(), m, view);
    }
  }

  double value(std::int64_t m, std::int64_t k, std::int64_t step_depth) const {
    return double{scales[static_cast<std::size_t>(k / step_depth * view.padded + m)]} *
           codes[static_cast<std::size_t>(m * view.stride + k)];
  }
};

struct alignas(64) Scratch {
  std::byte bytes[kMatMulScratchBytes];
};

/// Results with the panel's column scale, as store() applies it.
std::vector<float> scaled(const PanelView& panel, std::vector<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] *= panel.column_scale[i % kPanelColumns];
  return out;
}

std::vector<float> multiply(const MatMulKernels& kernels, const PanelView& panel, const QuantizedRows& rows,
                            std::int64_t first, std::int64_t count) {
  static Scratch scratch;
  std::vector<float> out(static_cast<std::size_t>((count + 15) / 16 * 16 * kPanelColumns), -1.0F);
  kernels.multiply(panel, rows, first, count, out.data(), scratch.bytes);
  return scaled(panel, std::move(out));
}

/// The largest error of results[rows][32], columns from `first` on, against float64 products, each as a share of the
/// sum of its terms' sizes. activation(m, k): what row m has at depth k.
template <typename Activation>
double worst_error(const Example& example, std::int64_t first, std::int64_t rows, const std::vector<float>& results,
                   const Activation& activation) {
  const std::int64_t depth = example.weights.depth;
  double worst = 0;
  for (std::int64_t m = 0; m < rows; ++m) {
    for (std::int64_t n = first; n < std::min(example.weights.columns, first + kPanelColumns); ++n) {
      double sum = 0;
      double size = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        const double term = activation(m, k) * example.values[static_cast<std::size_t>(n * depth + k)];
        sum += term;
        size += std::fabs(term);
      }
      const double error = std::fabs(results[static_cast<std::size_t>(m * kPanelColumns + n - first)] - sum);
      const double share = error / (size + 1e-30);
      if (std::isnan(share)) return share;
      worst = std::max(worst, share);
    }
  }
  return worst;
}

struct Case {
  std::int64_t columns;
  std::int64_t depth;
  int bits;
  std::int64_t block;
  bool zero_points;
};

const Case kCases[] = {{32, 32, 4, 32, false},   {45, 576, 4, 32, false}, {33, 1100, 4, 32, true},
                       {64, 1056, 8, 32, false}, {7, 96, 8, 32, true},    {40, 1300, 4, 16, false},
                       {35, 40, 4, 16, true},    {35, 1072, 8, 16, true}, {50, 2100, 4, 128, true},
                       {32, 260, 4, 64, false},  {32, 600, 8, 256, true}, {32, 512, 8, 128, false}};

TEST_CASE("products in int8 equal float64 products of the same codes") {
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    for (const Case& c : kCases) {
      CAPTURE(isa_name(isa));
      CAPTURE(c.depth);
      CAPTURE(c.bits);
      CAPTURE(c.block);
      const Example example(c.columns, c.depth, c.bits, c.block, c.zero_points);
      const PackedWeights packed(example.weights, false);
      const std::int64_t rows = 21;
      const PanelView shape = packed.panel(0);
      const Rows x(kernels, random_rows(rows, c.depth, shape.depth), rows, shape);
      for (std::int64_t p = 0; p < packed.panels(); ++p) {
        const std::vector<float> out = multiply(kernels, packed.panel(p), x.view, 0, rows);
        const auto activation = [&](std::int64_t m, std::int64_t k) { return x.value(m, k, c.block); };
        CHECK(worst_error(example, p * kPanelColumns, rows, out, activation) < 1e-6);
      }
    }
  }
}

TEST_CASE("a row comes out the same in any company") {
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    for (const Case& c : kCases) {
      CAPTURE(isa_name(isa));
      CAPTURE(c.block);
      const Example example(c.columns, c.depth, c.bits, c.block, c.zero_points);
      const PackedWeights packed(example.weights, false);
      const PackedWeights exact(example.weights, true);
      const PanelView panel = packed.panel(packed.panels() - 1);
      constexpr std::int64_t kRows = 70;
      const std::vector<float> floats = random_rows(kRows, c.depth, panel.depth);
      const Rows x(kernels, floats, kRows, panel);
      const std::vector<float> all = multiply(kernels, panel, x.view, 0, kRows);
      static Scratch scratch;
      std::vector<float> all_exact(80 * 32);
      const PanelView exact_panel = exact.panel(exact.panels() - 1);
      kernels.multiply_exact(exact_panel, floats.data(), panel.depth, kRows, all_exact.data(), scratch.bytes);
      for (const std::int64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33, 54}) {
        CAPTURE(count);
        const std::vector<float> some = multiply(kernels, panel, x.view, 16, count);
        CHECK(std::equal(some.begin(), some.begin() + count * 32, all.begin() + 16 * 32));
        std::vector<float> out(static_cast<std::size_t>(count * 32));
        kernels.multiply_exact(exact_panel, floats.data() + 16 * panel.depth, panel.depth, count, out.data(),
                               scratch.bytes);
        CHECK(std::equal(out.begin(), out.end(), all_exact.begin() + 16 * 32));
      }
    }
  }
}

TEST_CASE("matrix products of NEON have the bits of its dot products") {
  const std::vector<Isa> isas = supported_isas();
  if (std::find(isas.begin(), isas.end(), Isa::kNeonI8mm) == isas.end()) return;
  for (const Case& c : kCases) {
    CAPTURE(c.block);
    const Example example(c.columns, c.depth, c.bits, c.block, c.zero_points);
    const PackedWeights packed(example.weights, false);
    const PanelView panel = packed.panel(0);
    for (const std::int64_t rows : {1, 2, 3, 4, 9, 16, 21}) {
      CAPTURE(rows);
      const MatMulKernels& dots = matmul_kernels(Isa::kNeonDot);
      const Rows x(dots, random_rows(rows, c.depth, panel.depth), rows, panel);
      const std::vector<float> wanted = multiply(dots, panel, x.view, 0, rows);
      const std::vector<float> found = multiply(matmul_kernels(Isa::kNeonI8mm), panel, x.view, 0, rows);
      CHECK(std::equal(wanted.begin(), wanted.begin() + rows * 32, found.begin()));
    }
  }
}

TEST_CASE("products in float32 equal float64 products") {
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    for (const Case& c : kCases) {
      CAPTURE(isa_name(isa));
      CAPTURE(c.block);
      const Example example(c.columns, c.depth, c.bits, c.block, c.zero_points);
      const PackedWeights packed(example.weights, true);
      const PanelView panel = packed.panel(0);
      const std::int64_t rows = 5;
      const std::vector<float> x = random_rows(rows, c.depth, panel.depth);
      static Scratch scratch;
      std::vector<float> out(16 * 32);
      kernels.multiply_exact(panel, x.data(), panel.depth, rows, out.data(), scratch.bytes);
      const auto activation = [&](std::int64_t m, std::int64_t k) {
        return double{x[static_cast<std::size_t>(m * panel.depth + k)]};
      };
      CHECK(worst_error(example, 0, rows, out, activation) <= 4e-6);
    }
  }
}

/// Rows of activations in bfloat16, and products with them.
struct TileProduct {
  static constexpr std::int64_t kRows = 70;
  static constexpr std::int64_t kPadded = 96;

  const MatMulKernels& kernels;
  std::vector<float> x;
  std::vector<std::uint16_t> memory;
  Bf16Rows rows;

  TileProduct(const MatMulKernels& with, std::int64_t depth, const PanelView& shape)
      : kernels(with), x(random_rows(kRows, depth, shape.depth)) {
    memory.assign(static_cast<std::size_t>(kPadded * shape.depth), 0);
    rows = {kPadded, memory.data()};
    for (std::int64_t m = 0; m < kRows; ++m) kernels.load_row_bf16(x.data() + m * shape.depth, shape, m, rows);
  }

  void multiply(std::span<const TileColumns> columns, std::int64_t first, std::span<const std::int64_t> places) const {
    static Scratch scratch;
    std::vector<float> sums(columns.size() * kPadded * 32);
    kernels.multiply_bf16(columns, rows, first, places, sums.data(), scratch.bytes);
  }
};

/// A panel as columns for tiles, stored to data[rows][width] at `column`.
TileColumns tile_columns(const PackedWeights& packed, std::int64_t panel, float* data, std::int64_t width) {
  TileColumns columns;
  columns.panel = packed.panel(panel);
  columns.output.columns = std::min(kPanelColumns, packed.columns() - panel * kPanelColumns);
  columns.output.scale = columns.panel.column_scale;
  columns.output.data = data;
  columns.output.stride = width;
  return columns;
}

TEST_CASE("products in bfloat16 equal float64 products up to rounding, in any company") {
  constexpr std::int64_t kRows = TileProduct::kRows;
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    if (kernels.multiply_bf16 == nullptr) continue;
    for (const Case& c : kCases) {
      CAPTURE(isa_name(isa));
      CAPTURE(c.bits);
      CAPTURE(c.block);
      const Example example(c.columns, c.depth, c.bits, c.block, c.zero_points);
      const PackedWeights packed(example.weights, false);
      const TileProduct product(kernels, c.depth, packed.panel(0));
      std::vector<std::int64_t> places(kRows);
      for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i);
      std::vector<float> other(kRows * 32);
      std::vector<float> all(kRows * 32, -7.0F);
      const std::array both = {tile_columns(packed, packed.panels() - 1, other.data(), 32),
                               tile_columns(packed, 0, all.data(), 32)};
      product.multiply(both, 0, places);
      for (const std::size_t count : {1, 16, 17, 32, 38}) {
        std::vector<float> some(40 * 40, -7.0F);
        const TileColumns columns = tile_columns(packed, 0, some.data(), 40);
        // Every row but the third goes to the place after its own.
        std::vector<std::int64_t> moved(count);
        for (std::size_t i = 0; i < count; ++i) moved[i] = static_cast<std::int64_t>(i == 2 ? 0 : i + 1);
        product.multiply({&columns, 1}, 32, moved);
        for (std::size_t i = 0; i < count; ++i) {
          const float* const row = some.data() + moved[i] * 40;
          CHECK(std::equal(row, row + columns.output.columns, all.data() + (32 + i) * 32));
          CHECK(std::all_of(row + columns.output.columns, row + 40, [](float value) { return value == -7.0F; }));
        }
      }
      const auto activation = [&](std::int64_t m, std::int64_t k) {
        return double{product.x[static_cast<std::size_t>(m * packed.panel(0).depth + k)]};
      };
      // Each factor is off by at most 2^-9 of its size.
      CHECK(worst_error(example, 0, kRows, all, activation) <= 0x1p-8 * 1.1);
    }
  }
}

TEST_CASE("products in bfloat16 are stored with bias and gate as those of other kernels") {
  constexpr std::int64_t kRows = TileProduct::kRows;
  constexpr std::int64_t kWidth = 60;
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    if (kernels.multiply_bf16 == nullptr) continue;
    for (const Case& c : kCases) {
      CAPTURE(c.depth);
      CAPTURE(c.bits);
      CAPTURE(c.block);
      const Example example(c.columns, c.depth, c.bits, c.block, c.zero_points);
      const Example gates(c.columns + 3, c.depth, c.bits, c.block, c.zero_points);
      const PackedWeights packed(example.weights, false);
      const PackedWeights gate(gates.weights, false);
      const TileProduct product(kernels, c.depth, packed.panel(0));
      std::vector<std::int64_t> places(kRows);
      for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(kRows - 1 - i);
      std::vector<float> bias(32);
      for (std::size_t i = 0; i < 32; ++i) bias[i] = static_cast<float>(i) * 0.03F;
      std::vector<float> plain(kRows * 32);
      std::vector<float> plain_gate(kRows * 32);
      product.multiply(std::array{tile_columns(packed, 0, plain.data(), 32)}, 0, places);
      product.multiply(std::array{tile_columns(gate, 0, plain_gate.data(), 32)}, 0, places);
      for (const ElementKind kind : {ElementKind::kFloat32, ElementKind::kFloat16}) {
        std::vector<float> wide(kRows * kWidth, 5.0F);
        const std::vector<Half> five(kRows * kWidth, [] {
          Half half{};
          from_float(5.0F, &half);
          return half;
        }());
        std::vector<Half> narrow = five;
        std::vector<TileColumns> columns;
        const std::int64_t existing = std::min<std::int64_t>(c.columns, 32);
        for (int half = 0; half < 2 && half * 16 < existing; ++half) {
          TileColumns some = tile_columns(packed, 0, nullptr, kWidth);
          some.gate = gate.panel(0);
          some.half = half;
          some.output.kind = kind;
          some.output.columns = std::min<std::int64_t>(existing - half * 16, 16);
          some.output.scale += half * 16;
          some.output.bias = bias.data() + half * 16;
          some.output.gate_scale = some.gate.column_scale + half * 16;
          some.output.gate_bias = half == 0 ? bias.data() : bias.data() + 16;
          if (kind == ElementKind::kFloat32) {
            some.output.data = wide.data() + half * 16;
          } else {
            some.output.data = narrow.data() + half * 16;
          }
          columns.push_back(some);
        }
        product.multiply(columns, 0, places);
        double worst = 0;
        for (std::int64_t m = 0; m < kRows; ++m) {
          for (std::int64_t n = 0; n < kWidth; ++n) {
            const auto at = static_cast<std::size_t>(m * kWidth + n);
            const float got = kind == ElementKind::kFloat32 ? wide[at] : to_float(narrow[at]);
            const auto from = static_cast<std::size_t>(m * 32 + n);
            const auto column = static_cast<std::size_t>(n);
            const double g = n < existing ? double{plain_gate[from]} + double{bias[column]} : 0;
            const double y = n < existing ? double{plain[from]} + double{bias[column]} : 0;
            const double wanted = n < existing ? g / (1 + std::exp(-g)) * y : 5.0;
            const double step = kind == ElementKind::kFloat32 ? 4e-6 : 0x1p-11;
            worst = std::max(worst, std::fabs(double{got} - wanted) / (step * std::fabs(wanted) + 0x1p-24));
          }
        }
        CHECK(worst <= 1.01);
      }
    }
  }
}

TEST_CASE("results with a gate become the rows that another product takes") {
  constexpr std::int64_t kRows = TileProduct::kRows;
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    if (kernels.multiply_bf16 == nullptr) continue;
    // Of the next product: one slab, some, and some whose last is shorter.
    for (const auto& [columns, unit] : {std::array{64, 32}, std::array{768, 64}, std::array{1248, 32}}) {
      CAPTURE(columns);
      const Example example(columns, 96, 4, 32, false);
      const Example gates(columns, 96, 4, 32, true);
      const PackedWeights packed(example.weights, false);
      const PackedWeights gate(gates.weights, false);
      const TileProduct product(kernels, 96, packed.panel(0));
      PanelView next;
      next.unit_depth = unit;
      next.depth = columns;
      std::vector<float> results(static_cast<std::size_t>(kRows * columns));
      std::vector<std::uint16_t> memory(static_cast<std::size_t>(TileProduct::kPadded * columns), 0xFFFFU);
      const Bf16Rows given{TileProduct::kPadded, memory.data()};
      given.clear_padding(kRows, next);
      std::vector<std::int64_t> places(kRows);
      for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i);
      for (std::int64_t column = 0; column < columns; column += 16) {
        TileColumns some = tile_columns(packed, column / 32, results.data() + column, columns);
        some.gate = gate.panel(column / 32);
        some.half = static_cast<int>(column / 16 % 2);
        some.output.columns = 16;
        some.output.scale += some.half * 16;
        some.output.gate_scale = some.gate.column_scale + some.half * 16;
        product.multiply({&some, 1}, 0, places);
        const std::int64_t slab = Bf16Rows::slab_depth(next);
        const std::int64_t start = column / slab * slab;
        some.output.tiles_depth = std::min(slab, columns - start);
        some.output.tiles =
            given.group(start, some.output.tiles_depth, 0) + (column - start) / 32 * 32 * 32 + column % 32;
        product.multiply({&some, 1}, 0, std::span(places).first(32));
        product.multiply({&some, 1}, 32, std::span(places).last(kRows - 32));
      }
      std::vector<std::uint16_t> wanted(memory.size(), 0);
      for (std::int64_t m = 0; m < kRows; ++m) {
        kernels.load_row_bf16(results.data() + m * columns, next, m, {TileProduct::kPadded, wanted.data()});
      }
      CHECK(memory == wanted);
    }
  }
}

TEST_CASE("quantized rows are within half a step of the activations") {
  const MatMulKernels& kernels = matmul_kernels(supported_isas().back());
  PanelView shape;
  shape.units = 3;
  shape.unit_depth = 32;
  shape.depth = 96;
  std::vector<float> x = random_rows(2, 96, 96);
  std::fill(x.begin() + 32, x.begin() + 64, 0.0F);
  x[96] = std::numeric_limits<float>::infinity();
  const Rows rows(kernels, x, 2, shape);
  for (std::int64_t k = 0; k < 96; ++k) {
    const double scale = rows.scales[static_cast<std::size_t>(k / 32 * 16)];
    CHECK(std::fabs(rows.value(0, k, 32) - double{x[static_cast<std::size_t>(k)]}) <= scale * 0.50001);
  }
  CHECK(rows.scales[16] == 0.0F);
  CHECK(std::isnan(rows.scales[1]));
  CHECK(!std::isnan(rows.scales[17]));
  std::int32_t sum = 0;
  for (int k = 0; k < 32; ++k) sum += rows.codes[static_cast<std::size_t>(k)];
  CHECK(rows.offsets[0] == -8 * sum);
}

TEST_CASE("results are stored with bias and gate") {
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    std::vector<float> result(64);
    std::vector<float> gate(64);
    std::vector<float> bias(32, 0.5F);
    const std::vector<float> scale(32, 2.0F);
    for (int i = 0; i < 64; ++i) {
      result[static_cast<std::size_t>(i)] = static_cast<float>(i) * 0.25F - 4.0F;
      gate[static_cast<std::size_t>(i)] = static_cast<float>(i) * 6.0F - 150.0F;
    }
    std::vector<float> out(50, 7.0F);
    PanelOutput output;
    output.columns = 19;
    output.scale = scale.data();
    output.bias = bias.data();
    output.gate = gate.data();
    output.gate_scale = scale.data();
    output.gate_bias = bias.data();
    output.data = out.data();
    output.stride = 25;
    kernels.store(result.data(), 2, output);
    for (int m = 0; m < 2; ++m) {
      for (int c = 0; c < 19; ++c) {
        const double g = 2 * double{gate[static_cast<std::size_t>(m * 32 + c)]} + 0.5;
        const double wanted = g / (1 + std::exp(-g)) * (2 * double{result[static_cast<std::size_t>(m * 32 + c)]} + 0.5);
        CHECK(out[static_cast<std::size_t>(m * 25 + c)] == doctest::Approx(wanted).epsilon(1e-5));
      }
      CHECK(out[static_cast<std::size_t>(m * 25 + 19)] == 7.0F);
    }
  }
}

#if defined(__x86_64__)
TEST_CASE("MatMulKernels_Avx512Bf16_AreThoseOfInt8") {
  CHECK(&matmul_kernels(Isa::kAvx512Bf16) == &matmul_kernels(Isa::kAvx512Vnni));
}
#endif

}  // namespace
}  // namespace genai::kernels
