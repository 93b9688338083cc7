#include "genai/kernels/handed_rows.h"

#include "genai/kernels/test_numbers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

namespace genai::kernels {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

/// Owned rows in int8.
struct OwnedRows {
  std::vector<Line> memory;
  QuantizedRows view;

  OwnedRows(std::int64_t rows, const PanelView& shape)
      : memory(QuantizedRows::bytes(rows, shape) / sizeof(Line)),
        view(QuantizedRows::at(memory.data()->bytes, rows, shape)) {}
};

/// Whether both have the same rows; a scale that is NaN equals another.
bool are_equal(const QuantizedRows& a, const QuantizedRows& b, std::int64_t rows, const PanelView& shape) {
  for (std::int64_t m = 0; m < rows; ++m) {
    bool poisoned = false;
    for (std::int64_t step = 0; step < shape.steps(); ++step) {
      const std::int64_t at = step * a.padded + m;
      if (a.scales[at] != a.scales[at] && b.scales[at] != b.scales[at]) {
        poisoned = true;
      } else if (a.scales[at] != b.scales[at] || a.offsets[at] != b.offsets[at]) {
        return false;
      }
    }
    const auto depth = static_cast<std::size_t>(shape.depth);
    if (!poisoned && std::memcmp(a.codes + m * a.stride, b.codes + m * b.stride, depth) != 0) return false;
  }
  return true;
}

TEST_CASE("rows are quantized as their blocks are one by one") {
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    for (const std::int64_t block : {16, 32, 64}) {
      for (const std::int64_t depth : {64, 512, 576, 896, 1024}) {
        CAPTURE(isa_name(isa));
        CAPTURE(block);
        CAPTURE(depth);
        const PanelView shape = PanelView::with_blocks(depth, block);
        std::vector<float> x = random_numbers(4 * depth);
        std::fill_n(x.begin(), 64, 0.0F);
        std::fill_n(x.begin() + depth, 64, 1e-38F);
        x[static_cast<std::size_t>(2 * depth + 33)] = -std::numeric_limits<float>::infinity();
        x[static_cast<std::size_t>(3 * depth + 1)] = std::numeric_limits<float>::quiet_NaN();
        OwnedRows found(4, shape);
        OwnedRows wanted(4, shape);
        for (std::int64_t m = 0; m < 4; ++m) {
          kernels.quantize_row(x.data() + m * depth, shape.steps(), block, m, found.view);
          for (std::int64_t step = 0; step < shape.steps(); ++step) {
            QuantizedRows one = wanted.view;
            one.codes += step * block;
            one.scales += step * one.padded;
            one.offsets += step * one.padded;
            kernels.quantize_row(x.data() + m * depth + step * block, 1, block, m, one);
          }
        }
        CHECK(are_equal(found.view, wanted.view, 4, shape));
        CHECK(found.view.scales[2 + 33 / block * found.view.padded] !=
              found.view.scales[2 + 33 / block * found.view.padded]);
        CHECK(found.view.scales[3] != found.view.scales[3]);
        CHECK(found.view.scales[0] == 0.0F);
      }
    }
  }
}

TEST_CASE("results that are handed over are those that are stored, quantized") {
  constexpr std::int64_t kFirst = 3;
  const std::vector<float> scale(32, 0.75F);
  const std::vector<float> bias = random_numbers(32);
  for (const Isa isa : supported_isas()) {
    const MatMulKernels& kernels = matmul_kernels(isa);
    for (const std::int64_t block : {16, 32}) {
      const PanelView shape = PanelView::with_blocks(96, block);
      for (const std::int64_t count : {1, 15, 16, 33}) {
        CAPTURE(isa_name(isa));
        CAPTURE(block);
        CAPTURE(count);
        const std::int64_t rows = kFirst + count;
        OwnedRows found(rows, shape);
        OwnedRows wanted(rows, shape);
        std::vector<float> stored(static_cast<std::size_t>(count * 96));
        for (std::int64_t column = 0; column < 96; column += kPanelColumns) {
          const std::vector<float> random = random_numbers(2 * (count + column) * kPanelColumns);
          PanelOutput output;
          output.scale = scale.data();
          output.bias = bias.data();
          output.gate = random.data() + random.size() / 2;
          output.gate_scale = scale.data();
          output.stride = 96;
          output.data = stored.data() + column;
          kernels.store(random.data(), count, output);
          HandedRows{{}, found.view}.put_quantized(kFirst, column, shape, output);
          kernels.store(random.data(), count, output);
        }
        for (std::int64_t m = 0; m < count; ++m) {
          kernels.quantize_row(stored.data() + m * 96, shape.steps(), block, kFirst + m, wanted.view);
        }
        CHECK(are_equal(found.view, wanted.view, rows, shape));
      }
    }
  }
}

TEST_CASE("memory of rows that are handed over has both kinds, or one") {
  for (const std::int64_t block : {16, 32, 64}) {
    const PanelView reader = PanelView::with_blocks(128, block);
    for (const std::int64_t in_tiles : {0, 1, 33}) {
      for (const std::int64_t others : {0, 3}) {
        const auto bytes = static_cast<std::size_t>(HandedRows::bytes(in_tiles, others, reader));
        std::vector<Line> memory(bytes / sizeof(Line) + 1);
        const HandedRows rows = HandedRows::at(memory.data()->bytes, in_tiles, others, reader);
        CHECK((rows.tiles.data != nullptr) == (in_tiles > 0));
        CHECK((rows.quantized.codes != nullptr) == (others > 0 && block <= kPanelColumns));
        rows.clear_padding(in_tiles, others, reader);
        if (rows.quantized.codes == nullptr) continue;
        const auto* const end =
            reinterpret_cast<const std::byte*>(rows.quantized.offsets + reader.steps() * rows.quantized.padded);
        CHECK(end == memory.data()->bytes + bytes);
        CHECK(rows.quantized.scales[3] == 0.0F);
      }
    }
  }
}

}  // namespace
}  // namespace genai::kernels
