#pragma once

#include "genai/kernels/matmul.h"
#include "genai/kernels/nbits_weights.h"

#include <cstddef>
#include <cstdint>

namespace genai::kernels {

/// Rows that a product gives to the one behind it, in the form in which that one multiplies them: those of prompts for
/// tiles, where the CPU has them, and the others in int8. A loan of a tensor of bytes.
struct HandedRows {
  Bf16Rows tiles;           ///< no data when there are no such rows
  QuantizedRows quantized;  ///< no codes when there are no such rows, or a block of the reader is wider than a panel

  /// Size of the tensor: `in_tiles` rows, and `others`, for a reader of this shape.
  static std::int64_t bytes(std::int64_t in_tiles, std::int64_t others, const PanelView& reader);
  /// In a tensor of that size, aligned to 64.
  static HandedRows at(std::byte* memory, std::int64_t in_tiles, std::int64_t others, const PanelView& reader);
  void clear_padding(std::int64_t in_tiles, std::int64_t others, const PanelView& reader) const;

  /// Lets 16 columns from `column` on go to `tiles`.
  void put_into_tiles(std::int64_t column, const PanelView& reader, PanelOutput& output) const;
  /// Lets a panel whose first column is `column` go to `quantized`, from row `row` on.
  void put_quantized(std::int64_t row, std::int64_t column, const PanelView& reader, PanelOutput& output) const;
};

}  // namespace genai::kernels
