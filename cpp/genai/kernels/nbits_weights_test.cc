#include "genai/kernels/nbits_weights.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace genai::kernels {
namespace {

/// A matrix of codes and zero points that start from 0, which can be laid out in each way.
struct Matrix {
  std::int64_t depth;
  std::int64_t columns;
  int bits;
  std::int64_t block;  ///< 0 for all of depth
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  std::vector<std::uint8_t> zero_points;

  std::int64_t blocks() const { return block == 0 ? 1 : (depth + block - 1) / block; }
  int code(std::int64_t k, std::int64_t n) const {
    return static_cast<int>((k * 7919 + n * 104729 + k * n * 31) % (1 << bits));
  }
  int zero(std::int64_t b, std::int64_t n) const { return static_cast<int>((b * 37 + n * 11 + 5) % (1 << bits)); }
  static float scale(std::int64_t b, std::int64_t n) { return 0.25F + 0.125F * static_cast<float>((b + 3 * n) % 17); }

  /// Weights in a layout; loans from this object until the next call.
  NBitsWeights in(NBitsLayout layout, bool is_signed) {
    const bool rows = layout == NBitsLayout::kRows;
    const bool native = layout == NBitsLayout::kBlocks;
    const std::int64_t row = native ? blocks() * block : rows ? columns : depth;
    const std::int64_t zero_row = native && bits == 4 ? (blocks() + 1) / 2 * 2 : blocks();
    codes.assign(static_cast<std::size_t>(((rows ? depth : columns) * row * bits + 7) / 8), 0);
    scales.assign(static_cast<std::size_t>(columns * blocks()), 0.0F);
    zero_points.assign(static_cast<std::size_t>((columns * zero_row * bits + 7) / 8), 0);
    const auto put = [&](std::vector<std::uint8_t>& to, std::int64_t at, int value) {
      if (is_signed) value ^= 1 << (bits - 1);
      const std::int64_t byte = bits == 8 ? at : at / 2;
      to[static_cast<std::size_t>(byte)] |= static_cast<std::uint8_t>(bits == 8 ? value : value << (at % 2 * 4));
    };
    for (std::int64_t n = 0; n < columns; ++n) {
      for (std::int64_t k = 0; k < depth; ++k) put(codes, rows ? k * row + n : n * row + k, code(k, n));
      for (std::int64_t b = 0; b < blocks(); ++b) {
        scales[static_cast<std::size_t>(rows ? b * columns + n : n * blocks() + b)] = scale(b, n);
        put(zero_points, rows ? b * columns + n : n * zero_row + b, zero(b, n));
      }
    }
    NBitsWeights weights;
    weights.depth = depth;
    weights.columns = columns;
    weights.bits = bits;
    weights.block = block;
    weights.layout = layout;
    weights.is_signed = is_signed;
    weights.codes = codes;
    weights.scales = scales;
    weights.zero_points = zero_points;
    return weights;
  }
};

constexpr NBitsLayout kMatrices[] = {NBitsLayout::kRows, NBitsLayout::kColumns};

/// Whether both have the same streams, zero points and factors.
bool same(const PackedWeights& a, const PackedWeights& b) {
  if (a.panels() != b.panels() || a.panel_bytes() != b.panel_bytes()) return false;
  for (std::int64_t p = 0; p < a.panels(); ++p) {
    const PanelView x = a.panel(p);
    const PanelView y = b.panel(p);
    const auto zeros = static_cast<std::size_t>(x.steps() * kPanelColumns);
    if (!std::equal(x.data, x.data + a.panel_bytes(), y.data)) return false;
    if (!std::equal(x.column_scale, x.column_scale + kPanelColumns, y.column_scale)) return false;
    if ((x.zero_points == nullptr) != (y.zero_points == nullptr)) return false;
    if (x.zero_points != nullptr && !std::equal(x.zero_points, x.zero_points + zeros, y.zero_points)) return false;
  }
  return true;
}

TEST_CASE("a matrix is packed like the same weights in blocks") {
  for (const bool exact : {false, true}) {
    for (const int bits : {4, 8}) {
      for (const std::int64_t block : {16, 32, 64, 128, 256}) {
        for (const auto& [depth, columns] : {std::pair{block, 32}, {3 * block - 5, 45}, {block + 1, 7}}) {
          CAPTURE(bits);
          CAPTURE(block);
          CAPTURE(columns);
          Matrix matrix{depth, columns, bits, block, {}, {}, {}};
          const PackedWeights wanted(matrix.in(NBitsLayout::kBlocks, false), exact);
          for (const NBitsLayout layout : kMatrices) {
            for (const bool is_signed : {false, true}) {
              const NBitsWeights weights = matrix.in(layout, is_signed);
              CHECK_NOTHROW(weights.validate("m"));
              if (!is_signed) {
                CHECK(same(PackedWeights(weights, exact), wanted));
                continue;
              }
              CHECK(weights.zero(columns - 1, 0) == matrix.zero(0, columns - 1) - (1 << (bits - 1)));
              CHECK(same(PackedWeights(weights, exact), wanted));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("matrices in turn have the panels that each has alone, and zero points if one has them") {
  for (const bool exact : {false, true}) {
    Matrix gate{96, 70, 4, 32, {}, {}, {}};
    Matrix up = gate;
    const std::vector<NBitsWeights> sources = {gate.in(NBitsLayout::kBlocks, false),
                                               up.in(NBitsLayout::kBlocks, false)};
    std::vector<NBitsWeights> one_without = sources;
    one_without[0].zero_points = {};
    for (const std::vector<NBitsWeights>& both : {sources, one_without}) {
      const PackedWeights packed(both, exact);
      REQUIRE(packed.panels() == 3);
      for (std::size_t m = 0; m < both.size(); ++m) {
        const PackedWeights alone(both[m], exact);
        for (std::int64_t p = 0; p < 3; ++p) {
          const PanelView view = packed.panel(p, static_cast<std::int64_t>(m));
          const PanelView wanted = alone.panel(p);
          const std::size_t bytes = packed.panel_bytes();
          CHECK(view.data == packed.panel(0, 0).data + static_cast<std::size_t>(2 * p) * bytes + m * bytes);
          CHECK(std::equal(view.data, view.data + bytes, wanted.data));
          CHECK(std::equal(view.column_scale, view.column_scale + kPanelColumns, wanted.column_scale));
          for (std::int64_t at = 0; at < view.steps() * kPanelColumns; ++at) {
            CHECK(view.zero_points[at] == (wanted.zero_points == nullptr ? 0 : wanted.zero_points[at]));
          }
        }
      }
    }
  }
}

TEST_CASE("one scale of a column becomes its factor at the end") {
  Matrix matrix{192, 40, 8, 0, {}, {}, {}};
  for (const NBitsLayout layout : kMatrices) {
    const PackedWeights packed(matrix.in(layout, true), false);
    const PanelView last = packed.panel(1);
    CHECK(last.step_depth() == 64);  // 192 is no multiple of 128
    for (std::int64_t c = 0; c < 8; ++c) {
      CHECK(last.column_scale[c] == Matrix::scale(0, 32 + c));
      for (std::int64_t step = 0; step < last.steps(); ++step) {
        CHECK(last.zero_points[step * kPanelColumns + c] == matrix.zero(0, 32 + c) - 128);
      }
    }
  }
}

TEST_CASE("zero points in the middle are left out, and none are the middle of signed codes only") {
  Matrix matrix{64, 3, 8, 0, {}, {}, {}};
  const std::vector<std::uint8_t> middle(3, 128);
  const std::vector<std::uint8_t> zeros(3, 0);
  NBitsWeights weights = matrix.in(NBitsLayout::kRows, false);
  weights.zero_points = middle;
  CHECK_FALSE(weights.has_zero_points());
  weights.zero_points = {};
  CHECK(weights.has_zero_points());
  CHECK(weights.zero(2, 0) == -128);
  weights.is_signed = true;
  CHECK_FALSE(weights.has_zero_points());
  weights.zero_points = zeros;
  CHECK_FALSE(weights.has_zero_points());
  weights.zero_points = middle;  // -128
  CHECK(weights.zero(1, 0) == -128);
}

TEST_CASE("one scale and one zero point are those of all columns") {
  Matrix matrix{64, 35, 4, 0, {}, {}, {}};
  const std::vector<float> scale = {0.75F};
  const std::vector<std::uint8_t> zero = {0x0D};
  NBitsWeights weights = matrix.in(NBitsLayout::kColumns, false);
  weights.scales = scale;
  weights.zero_points = zero;
  CHECK_NOTHROW(weights.validate("m"));
  for (const std::int64_t column : {0, 1, 34}) {
    CHECK(weights.scale(column, 0) == 0.75F);
    CHECK(weights.zero(column, 0) == 13 - 8);
  }
}

TEST_CASE("a piece of a matrix is packed like a matrix of its columns") {
  for (const int bits : {4, 8}) {
    for (const std::int64_t block : {0, 32}) {
      Matrix whole{72, 91, bits, block, {}, {}, {}};
      Matrix left{72, 40, bits, block, {}, {}, {}};  // has the same codes in its columns
      for (const NBitsLayout layout : kMatrices) {
        NBitsWeights piece = whole.in(layout, true);
        piece.stored_columns = 91;
        piece.columns = 40;
        CHECK_NOTHROW(piece.validate("m"));
        CHECK(same(PackedWeights(piece, false), PackedWeights(left.in(layout, true), false)));

        piece.first = 51;
        CHECK_NOTHROW(piece.validate("m"));
        CHECK(piece.zero(39, 0) == whole.zero(0, 90) - (1 << (bits - 1)));
        CHECK(piece.scale(3, 0) == Matrix::scale(0, 54));
        piece.first = 52;
        CHECK_THROWS_AS(piece.validate("m"), Error);
      }
    }
  }
}

TEST_CASE("sizes that do not fit a matrix are refused") {
  Matrix matrix{64, 5, 8, 0, {}, {}, {}};
  const auto refusal = [&](auto change) {
    NBitsWeights weights = matrix.in(NBitsLayout::kRows, false);
    change(weights);
    try {
      weights.validate("m");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(refusal([](NBitsWeights&) {}).empty());
  CHECK(has(refusal([](NBitsWeights& w) { w.depth = 65; }), "B has 320 elements; 325 are needed"));
  CHECK(has(refusal([](NBitsWeights& w) { w.scales = w.scales.first(2); }), "scales has 2 elements; 5 are needed"));
  CHECK(has(refusal([](NBitsWeights& w) { w.zero_points = w.zero_points.first(4); }), "zero_points has 4 elements"));
  CHECK(has(refusal([](NBitsWeights& w) { w.block = 8; }), "block_size is 8"));
  CHECK(has(refusal([](NBitsWeights& w) { w.layout = static_cast<NBitsLayout>(7); }), "b_layout is 7"));
  CHECK(has(refusal([](NBitsWeights& w) {
              w.layout = NBitsLayout::kBlocks;
              w.is_signed = true;
            }),
            "b_signed needs"));
}

}  // namespace
}  // namespace genai::kernels
