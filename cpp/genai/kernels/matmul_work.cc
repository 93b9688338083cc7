#include "genai/kernels/matmul_work.h"

#include <algorithm>

namespace genai::kernels {

std::byte* MatMulWork::grow(std::vector<Line>& lines, std::size_t bytes) {
  const std::size_t count = (bytes + sizeof(Line) - 1) / sizeof(Line);
  if (lines.size() < count) lines = std::vector<Line>(count);
  return lines.data()->bytes;
}

std::span<const std::int64_t> MatMulWork::choose(const std::int32_t* prompt_rows, std::int64_t rows, bool of_prompts) {
  chosen_.clear();
  for (std::int64_t row = 0; row < rows; ++row) {
    if ((prompt_rows != nullptr && prompt_rows[row] != 0) == of_prompts) chosen_.push_back(row);
  }
  return chosen_;
}

QuantizedRows MatMulWork::quantized(std::int64_t rows, const PanelView& shape) {
  QuantizedRows out;
  out.padded = (rows + 15) / 16 * 16;
  // An odd number of lines: rows whose distance is a power of two would share cache sets.
  const std::int64_t row_lines = (shape.depth + 63) / 64;
  out.stride = 64 * (row_lines | 1);
  const auto padded = static_cast<std::size_t>(out.padded);
  const auto steps = static_cast<std::size_t>(shape.steps());
  out.codes = reinterpret_cast<std::int8_t*>(grow(codes_, padded * static_cast<std::size_t>(out.stride)));
  out.scales = reinterpret_cast<float*>(grow(scales_, padded * steps * sizeof(float)));
  out.offsets = reinterpret_cast<std::int32_t*>(grow(offsets_, padded * steps * sizeof(std::int32_t)));
  // Where rows are computed in pairs, the row behind an odd last one is, too, and not used.
  if (rows % 2 == 1) {
    const std::int64_t row = rows;
    std::fill_n(out.codes + row * out.stride, out.stride, std::int8_t{0});
    for (std::int64_t step = 0; step < shape.steps(); ++step) {
      out.scales[step * out.padded + row] = 0.0F;
      out.offsets[step * out.padded + row] = 0;
    }
  }
  return out;
}

Bf16Rows MatMulWork::bf16(std::int64_t rows, const PanelView& shape) {
  Bf16Rows out;
  out.padded = Bf16Rows::padded_rows(rows);
  const auto elements = static_cast<std::size_t>(out.padded * shape.depth);
  out.data = reinterpret_cast<std::uint16_t*>(grow(codes_, elements * sizeof(std::uint16_t)));
  out.clear_padding(rows, shape);
  return out;
}

float* MatMulWork::floats(std::int64_t count, std::int64_t stride) {
  return reinterpret_cast<float*>(grow(floats_, static_cast<std::size_t>(count * stride) * sizeof(float)));
}

std::span<const MatMulWork::Piece> MatMulWork::cut(std::int64_t rows, std::int64_t columns, const PanelView& shape,
                                                   int threads) {
  pieces_.clear();
  // Rows whose slabs stay in the second-level cache together leave it less room for sums.
  constexpr std::int64_t kCachedBytes = 1 << 20;
  const std::int64_t row_bytes = shape.depth * static_cast<std::int64_t>(sizeof(std::uint16_t));
  const bool stays = std::min(rows, kRowBlock) * row_bytes <= kCachedBytes;
  const std::int64_t most = stays && Bf16Rows::slab_depth(shape) < shape.depth ? kTilePanels / 2 : kTilePanels;
  std::int64_t left = (rows + kRowBlock - 1) / kRowBlock * columns;
  for (std::int64_t row = 0; row < rows; row += kRowBlock) {
    for (std::int64_t first = 0; first < columns;) {
      const std::int64_t share = (left + std::int64_t{2} * threads - 1) / (std::int64_t{2} * threads);
      const std::int64_t size = std::min({share, most, columns - first});
      pieces_.push_back({row, std::min(kRowBlock, rows - row), first, first + size});
      first += size;
      left -= size;
    }
  }
  return pieces_;
}

void MatMulWork::reserve_threads(int count, std::int64_t depth, std::int64_t results) {
  const auto floats = static_cast<std::size_t>((depth + 15) / 16 * 16 + results * kRowBlock * kPanelColumns);
  row_floats_ = static_cast<std::size_t>((depth + 15) / 16 * 16);
  if (threads_.size() < static_cast<std::size_t>(count)) threads_.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    std::unique_ptr<std::vector<Line>>& lines = threads_[static_cast<std::size_t>(i)];
    if (!lines) lines = std::make_unique<std::vector<Line>>();
    grow(*lines, kMatMulScratchBytes + floats * sizeof(float));
  }
}

MatMulWork::Thread MatMulWork::thread(int index) {
  std::byte* const start = threads_[static_cast<std::size_t>(index)]->data()->bytes;
  auto* const row = reinterpret_cast<float*>(start + kMatMulScratchBytes);
  return {start, row + row_floats_, row};
}

}  // namespace genai::kernels
