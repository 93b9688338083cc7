#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

// Weights of a quantized matrix product: as a graph holds them, and packed for our kernels.
namespace genai::kernels {

/// Columns of the result that are packed and computed together.
constexpr std::int64_t kPanelColumns = 32;
/// Columns of half a panel: the lanes of a vector.
constexpr int kLanes = 16;
/// Depth of a chunk: what the four bits of a line's bytes reach.
constexpr std::int64_t kChunkDepth = 32;

/// Order of the codes in a graph, as the attribute `b_layout` numbers it.
enum class NBitsLayout : std::int64_t {
  kBlocks = 0,   ///< com.microsoft::MatMulNBits: blocks of a column, filled up to whole blocks
  kRows = 1,     ///< [K, N]: the matrix as MatMul, MatMulInteger and DequantizeLinear have it
  kColumns = 2,  ///< [N, K]: the same transposed
};

/// The constants of a quantized matrix in one of three layouts: a weight is (code - zero point) * scale. A loan.
///
/// |             | kBlocks                             | kRows                          | kColumns       |
/// |-------------|-------------------------------------|--------------------------------|----------------|
/// | codes       | [N, blocks, block * bits / 8]       | [K, N]                         | [N, K]         |
/// | scales      | [N, blocks]                         | [blocks, N] or one             | [N, blocks] or one |
/// | zero points | [N, ceil(blocks * bits / 8)], or empty for 2^(bits - 1) | as scales, or empty for 0 | as kRows |
///
/// Codes of 4 bits lie two in a byte, the lower half first; in kRows and kColumns without a gap at the end of a row.
struct NBitsWeights {
  std::int64_t depth = 0;    ///< K: rows of the matrix, elements of an activation row
  std::int64_t columns = 0;  ///< N
  int bits = 4;              ///< 4 or 8
  /// Neighbours in depth that share a scale: 16, 32, 64, 128 or 256; with kRows and kColumns also 0, for all of them.
  std::int64_t block = 32;
  NBitsLayout layout = NBitsLayout::kBlocks;
  bool is_signed = false;  ///< codes and zero points are in two's complement; not with kBlocks
  /// Columns that the constants have: N in the table above, of which `columns` from `first` on are meant. 0 means that
  /// they have no others; not with kBlocks.
  std::int64_t stored_columns = 0;
  std::int64_t first = 0;
  std::span<const std::uint8_t> codes;
  std::span<const float> scales;            ///< or scales16
  std::span<const std::uint16_t> scales16;  ///< the same in float16
  std::span<const std::uint8_t> zero_points;

  /// Columns of the constants.
  std::int64_t width() const { return stored_columns == 0 ? columns : stored_columns; }
  std::int64_t blocks() const { return block == 0 ? 1 : (depth + block - 1) / block; }
  /// Throws kInvalidArgument when a size does not fit the others; `node` names the node in the message.
  void validate(const std::string& node) const;

  /// Scale of a block of a column.
  float scale(std::int64_t column, std::int64_t at) const;
  /// Zero point of a block of a column, less 2^(bits - 1), where signed codes count from -2^(bits - 1) on.
  std::int8_t zero(std::int64_t column, std::int64_t at) const;
  /// Whether a zero point is not 2^(bits - 1), or 0 of signed codes. Cost: O(zero points).
  bool has_zero_points() const;

 private:
  /// Place of a block's scale, or zero point, in layouts kRows and kColumns.
  std::int64_t index(std::int64_t column, std::int64_t at) const {
    return layout == NBitsLayout::kRows ? at * width() + first + column : (first + column) * blocks() + at;
  }
  bool has_one_zero_point() const;
};

/// Weights as the kernels read them: one stream of bytes a panel.
///
/// A panel is 32 columns; a unit is max(32, block) of depth. A unit holds its chunks (32 of depth each) and then its
/// scales. A chunk holds the lines of columns 0..15 and then those of columns 16..31; a line is 64 bytes, four for each
/// column. With 4 bits byte 4c + i of line j holds depth 4j + i of column c in its low bits and depth 16 + 4j + i in
/// its high bits (4 lines a half); with 8 bits it holds depth 4j + i (8 lines). Scales are 32 floats, or float16 when
/// `exact` is false, for each block in the unit: two when a block is 16. Zero points are a stream of their own. What
/// lies beyond K or N has scale 0.
struct PanelView {
  std::int64_t depth = 0;  ///< a multiple of `unit_depth`
  std::int64_t units = 0;  ///< of a panel
  std::int64_t unit_depth = 0;
  int bits = 4;
  int scales_per_unit = 1;
  std::size_t unit_bytes = 0;
  const std::byte* data = nullptr;           ///< of the panel, aligned to 64
  const std::int8_t* zero_points = nullptr;  ///< [steps()][32], less 2^(bits - 1); nullptr when all are that
  const float* column_scale = nullptr;       ///< [32] factors that a result is multiplied with at its end

  /// Without addresses and bytes: blocks of that depth, in units of at least 32.
  static PanelView with_blocks(std::int64_t depth, std::int64_t block);

  /// Scales of a column.
  std::int64_t steps() const { return units * scales_per_unit; }
  /// Depth that shares a scale: the graph's block, or what is best for a column with one scale.
  std::int64_t step_depth() const { return unit_depth / scales_per_unit; }
};

/// Matrices that are read in turn, panel by panel: they agree in all but their constants' places.
using NBitsMatrices = std::span<const NBitsWeights>;
/// Most of them in one image.
constexpr std::size_t kMatricesInTurn = 2;

/// What is known of packed weights before they are packed.
struct PackedShape {
  std::int64_t columns = 0;  ///< of a matrix
  std::int64_t matrices = 1;
  PanelView panel;           ///< without addresses
  bool zero_points = false;  ///< there are some; not asked of the constants, which costs reading them

  PackedShape(NBitsMatrices sources, bool exact, bool has_zero_points);

  /// Of a matrix.
  std::int64_t panels() const { return (columns + kPanelColumns - 1) / kPanelColumns; }
  /// Place of a panel in an image: one matrix after the other has its turn, so that who reads them together reads one
  /// stream.
  std::int64_t place(std::int64_t matrix, std::int64_t index) const { return index * matrices + matrix; }
  /// Bytes of a panel's stream: what a product with one row reads.
  std::size_t panel_bytes() const { return panel.unit_bytes * static_cast<std::size_t>(panel.units); }
  /// An image is the panels of all matrices, then [places][32] factors of columns, float32, then [places][steps][32]
  /// zero points, int8. Each of them starts at a multiple of 64 bytes.
  std::size_t scales_offset() const { return panel_bytes() * static_cast<std::size_t>(panels() * matrices); }
  std::size_t zero_points_offset() const;
  std::size_t image_bytes() const;
};

/// Packs `sources` into an image of zeros. `exact`: scales stay float32; else they become float16 times a power of two
/// for each column, which changes them by at most 2^-11 unless they came from float16. A scale of a whole column stays
/// as it is. The sources are read once, from their starts to their ends, and leave memory on the way if they are of a
/// mapped file.
void pack_weights(NBitsMatrices sources, bool exact, const PackedShape& shape, std::byte* image);

/// Owns packed weights. Immutable, so any number of threads may read it.
class PackedWeights {
 public:
  /// Packs `sources` into memory of its own; see pack_weights().
  PackedWeights(NBitsMatrices sources, bool exact);
  PackedWeights(const NBitsWeights& source, bool exact) : PackedWeights(NBitsMatrices(&source, 1), exact) {}
  /// Takes an image of this shape; aligned to 64.
  PackedWeights(const PackedShape& shape, std::shared_ptr<const std::byte> image)
      : shape_(shape), image_(std::move(image)) {}

  std::int64_t columns() const { return shape_.columns; }
  std::int64_t panels() const { return shape_.panels(); }
  PanelView panel(std::int64_t index, std::int64_t matrix = 0) const;
  std::size_t panel_bytes() const { return shape_.panel_bytes(); }
  std::size_t bytes() const { return shape_.image_bytes(); }
  bool has_zero_points() const { return shape_.zero_points; }

 private:
  PackedShape shape_;
  std::shared_ptr<const std::byte> image_;
};

}  // namespace genai::kernels
