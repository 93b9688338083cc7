#pragma once

#include "genai/kernels/element_kind.h"
#include "genai/kernels/isa.h"
#include "genai/kernels/nbits_weights.h"

#include <cstddef>
#include <cstdint>
#include <span>

// Products of activation rows with packed weights, for each instruction set.
namespace genai::kernels {

/// Rows of activations as int8, with a scale for each row and block of depth: an activation is code * scale. A loan.
/// `padded` is `rows` rounded up to 16; a row behind an odd last one is zero, and the others past the end are not read.
struct QuantizedRows {
  std::int64_t padded = 0;
  std::int64_t stride = 0;          ///< bytes from row to row, a multiple of 64
  std::int8_t* codes = nullptr;     ///< [padded][stride]
  float* scales = nullptr;          ///< [steps][padded]
  std::int32_t* offsets = nullptr;  ///< [steps][padded]: -8 times the sum of the codes

  /// Memory that `rows` rows of a depth and blocks of this shape take.
  static std::size_t bytes(std::int64_t rows, const PanelView& shape);
  /// In so much memory, aligned to 64.
  static QuantizedRows at(std::byte* memory, std::int64_t rows, const PanelView& shape);
  /// Makes the row behind an odd last one zero, which is computed where rows are computed in pairs.
  void clear_padding(std::int64_t rows, const PanelView& shape) const;
};

/// Rows of activations as bfloat16, in the order in which tiles meet them: [depth / slab][padded / 32][slab / 32][2]
/// [16 rows][32 of depth], where the last slab may be shorter. A loan. `padded` is `rows` rounded up to 32; the rows
/// past the end are zero.
struct Bf16Rows {
  static constexpr std::int64_t kGroup = 32;  ///< rows that lie together

  std::int64_t padded = 0;
  std::uint16_t* data = nullptr;

  /// Depth of a slab: whole units, in about equal parts, whose weights as bfloat16 leave room in the first-level cache.
  static std::int64_t slab_depth(const PanelView& shape);
  /// Rows that `rows` need.
  static std::int64_t padded_rows(std::int64_t rows) { return (rows + kGroup - 1) / kGroup * kGroup; }
  /// Makes the rows from `rows` on zero.
  void clear_padding(std::int64_t rows, const PanelView& shape) const;
  /// Of a slab's elements of the group of rows that starts at `row`; `start` and `depth` are the slab's.
  std::uint16_t* group(std::int64_t start, std::int64_t depth, std::int64_t row) const {
    return data + start * padded + row * depth;
  }
};

/// A row that is normalised before it is multiplied. A loan.
struct RowNorm {
  ElementKind kind = ElementKind::kFloat32;  ///< of source, skip and sum: float32 or float16
  std::int64_t count = 0;                    ///< elements of the row
  float epsilon = 0.0F;
  const float* weight = nullptr;  ///< [count]
  const void* source = nullptr;
  const void* skip = nullptr;  ///< is added to the source; or nullptr
  void* sum = nullptr;         ///< gets source + skip, where there is a skip
};

/// Where and how the result of a panel is stored: result * scale + bias, and with a gate that times
/// silu(gate * gate_scale + gate_bias).
struct PanelOutput {
  ElementKind kind = ElementKind::kFloat32;  ///< of the output: float32 or float16
  std::int64_t columns = kPanelColumns;      ///< that exist, 1..32
  const float* scale = nullptr;              ///< [32]: the panel's column_scale
  const float* bias = nullptr;               ///< [32] or nullptr
  const float* gate = nullptr;               ///< [count][32] or nullptr
  const float* gate_scale = nullptr;         ///< [32], when there is a gate
  const float* gate_bias = nullptr;          ///< [32] or nullptr
  void* data = nullptr;                      ///< of the first row's first column
  std::int64_t stride = 0;                   ///< elements from row to row
  /// Instead of `data`, only from tiles with a gate: Bf16Rows that another product takes, from the first column on.
  std::uint16_t* tiles = nullptr;
  std::int64_t tiles_depth = 0;  ///< of the slab that has the column
  /// Instead of `data`, for whole panels: rows of another product, from the first row and column on.
  QuantizedRows quantized;
  std::int64_t step_depth = 0;  ///< of that product's blocks, at most 32
};

/// 32 columns that tiles compute together, and where they go: those of a panel, or 16 of it and as many of its gate.
struct TileColumns {
  PanelView panel;     ///< packed with exact = false
  PanelView gate;      ///< of the same shape; its `data` is nullptr when there is none
  int half = 0;        ///< with a gate: which 16 columns of both
  PanelOutput output;  ///< from the first of these columns on; `gate` is not used, `data` is of the output's first row
};

/// Working memory of one thread, aligned to 64.
constexpr std::size_t kMatMulScratchBytes = std::size_t{64} << 10;

/// The functions of one instruction set. What a function computes for a row does not depend on the rows around it, bit
/// for bit. Thread-safe.
struct MatMulKernels {
  /// dst[i] = src[i] as float32, for i < count; then zeros up to `padded`.
  void (*load_row)(ElementKind kind, const void* src, std::int64_t count, std::int64_t padded, float* dst);
  /// dst[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i], where x = source + skip is not rounded to float16, for i <
  /// count; then zeros up to `padded`, a multiple of 32.
  void (*normalise_row)(const RowNorm& norm, std::int64_t padded, float* dst);
  /// Quantizes x[steps * step_depth] into row `row`: the largest size in a block becomes 127; halves round to even. A
  /// block with an infinity or NaN gets the scale NaN; one whose sizes are all below 1e-36 may become zeros.
  void (*quantize_row)(const float* x, std::int64_t steps, std::int64_t step_depth, std::int64_t row,
                       const QuantizedRows& out);
  /// out[count][32] = rows first..first + count - 1 times the panel, without its column_scale; `panel` was packed with
  /// exact = false. Sums of a block are exact integers. `first` is a multiple of 16, and out has room for count rounded
  /// up to 16.
  void (*multiply)(const PanelView& panel, const QuantizedRows& rows, std::int64_t first, std::int64_t count,
                   float* out, std::byte* scratch);
  /// The same in float32: rows[count][stride] with panel.depth elements each; `panel` was packed with exact = true.
  void (*multiply_exact)(const PanelView& panel, const float* rows, std::int64_t stride, std::int64_t count, float* out,
                         std::byte* scratch);
  /// Stores result[count][32].
  void (*store)(const float* result, std::int64_t count, const PanelOutput& output);

  // Products with activations and weights as bfloat16, for many rows; nullptr where int8 is as fast.

  /// Rounds x[shape.depth] to bfloat16, as row `row`.
  void (*load_row_bf16)(const float* x, const PanelView& shape, std::int64_t row, const Bf16Rows& rows) = nullptr;
  /// Multiplies rows first..first + places.size() - 1 with each of `columns`, which have one shape, and stores row
  /// first + i as row places[i] of the output. `first` is a multiple of 32. sums: [columns][places rounded up to 32]
  /// [32], used when the depth is more than one slab.
  void (*multiply_bf16)(std::span<const TileColumns> columns, const Bf16Rows& rows, std::int64_t first,
                        std::span<const std::int64_t> places, float* sums, std::byte* scratch) = nullptr;
};

/// Those with tiles.
struct Bf16Kernels {
  decltype(MatMulKernels::load_row_bf16) load_row_bf16;
  decltype(MatMulKernels::multiply_bf16) multiply_bf16;
};

const MatMulKernels& matmul_kernels(Isa isa);

extern const MatMulKernels kMatMulPlain;
extern const MatMulKernels kMatMulNeon;
extern const MatMulKernels kMatMulNeonDot;
extern const MatMulKernels kMatMulNeonI8mm;
extern const MatMulKernels kMatMulAvx2;
extern const MatMulKernels kMatMulAvxVnni;
extern const MatMulKernels kMatMulAvx512Vnni;
extern const Bf16Kernels kBf16Amx;

}  // namespace genai::kernels
