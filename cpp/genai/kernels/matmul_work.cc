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
  const QuantizedRows out = QuantizedRows::at(grow(codes_, QuantizedRows::bytes(rows, shape)), rows, shape);
  out.clear_padding(rows, shape);
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
