#include "genai/kernels/handed_rows.h"

#include <algorithm>

namespace genai::kernels {
namespace {

std::int64_t tiles_bytes(std::int64_t rows, const PanelView& reader) {
  return Bf16Rows::padded_rows(rows) * reader.depth * static_cast<std::int64_t>(sizeof(std::uint16_t));
}

std::int64_t quantized_bytes(std::int64_t rows, const PanelView& reader) {
  if (reader.step_depth() > kPanelColumns) return 0;
  return static_cast<std::int64_t>(QuantizedRows::bytes(rows, reader));
}

}  // namespace

std::int64_t HandedRows::bytes(std::int64_t in_tiles, std::int64_t others, const PanelView& reader) {
  return tiles_bytes(in_tiles, reader) + quantized_bytes(others, reader);
}

HandedRows HandedRows::at(std::byte* memory, std::int64_t in_tiles, std::int64_t others, const PanelView& reader) {
  HandedRows rows;
  if (in_tiles > 0) {
    rows.tiles.padded = Bf16Rows::padded_rows(in_tiles);
    rows.tiles.data = reinterpret_cast<std::uint16_t*>(memory);
  }
  if (quantized_bytes(others, reader) > 0) {
    rows.quantized = QuantizedRows::at(memory + tiles_bytes(in_tiles, reader), others, reader);
  }
  return rows;
}

void HandedRows::clear_padding(std::int64_t in_tiles, std::int64_t others, const PanelView& reader) const {
  if (tiles.data != nullptr) tiles.clear_padding(in_tiles, reader);
  if (quantized.codes != nullptr) quantized.clear_padding(others, reader);
}

void HandedRows::put_into_tiles(std::int64_t column, const PanelView& reader, PanelOutput& output) const {
  constexpr std::int64_t kTileDepth = 32;
  const std::int64_t slab = Bf16Rows::slab_depth(reader);
  const std::int64_t start = column / slab * slab;
  output.tiles_depth = std::min(slab, reader.depth - start);
  output.tiles = tiles.group(start, output.tiles_depth, 0) +
                 (column - start) / kTileDepth * kTileDepth * Bf16Rows::kGroup + column % kTileDepth;
}

void HandedRows::put_quantized(std::int64_t row, std::int64_t column, const PanelView& reader,
                               PanelOutput& output) const {
  const std::int64_t first = column / reader.step_depth() * quantized.padded + row;
  output.quantized = quantized;
  output.quantized.codes += row * quantized.stride + column;
  output.quantized.scales += first;
  output.quantized.offsets += first;
  output.step_depth = reader.step_depth();
}

}  // namespace genai::kernels
