#include "genai/kernels/nbits_weights.h"

#include "genai/base/error.h"
#include "genai/base/memory.h"
#include "genai/kernels/vec_element.h"
#include "genai/kernels/weight_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace genai::kernels {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::uint64_t kLowBits = 0x0F0F0F0F0F0F0F0FULL;

std::uint64_t read8(const std::uint8_t* p) {
  std::uint64_t x = 0;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

/// The 16 bytes of one column in a chunk's four lines, from the chunk's 16 bytes in the graph's order.
void interleave(const std::uint8_t* source, std::uint8_t* out) {
  const std::uint64_t low = read8(source);       // depth 0..15
  const std::uint64_t high = read8(source + 8);  // depth 16..31
  const std::uint64_t even = (low & kLowBits) | ((high & kLowBits) << 4);
  const std::uint64_t odd = ((low >> 4) & kLowBits) | (high & ~kLowBits);
  for (int i = 0; i < 8; ++i) {
    out[2 * i] = static_cast<std::uint8_t>(even >> (8 * i));
    out[2 * i + 1] = static_cast<std::uint8_t>(odd >> (8 * i));
  }
}

/// How many neighbours in depth are computed with one scale of the activations when the graph asks for none: as many
/// as leave the depth without much to fill up.
std::int64_t best_block(std::int64_t depth) {
  for (const std::int64_t block : {std::int64_t{128}, std::int64_t{64}}) {
    if (depth % block == 0) return block;
  }
  return kChunkDepth;
}

}  // namespace

void NBitsWeights::validate(const std::string& node) const {
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw Error(ErrorCode::kInvalidArgument, std::string("MatMulNBits ") + node + ": " + what);
  };
  constexpr std::int64_t kMaxSize = 0x7FFFFFFF;  // products of sizes stay below 2^63
  require(depth > 0 && columns > 0, "K and N must be at least 1");
  require(depth <= kMaxSize && columns <= kMaxSize,
          "K is " + std::to_string(depth) + " and N is " + std::to_string(columns) + "; at most 2^31 - 1 are allowed");
  require(bits == 4 || bits == 8, "bits is " + std::to_string(bits) + "; 4 and 8 are known");
  const bool matrix = layout != NBitsLayout::kBlocks;
  require(!matrix || layout == NBitsLayout::kRows || layout == NBitsLayout::kColumns,
          "b_layout is " + std::to_string(static_cast<std::int64_t>(layout)) + "; 0, 1 and 2 are known");
  require(matrix || !is_signed, "b_signed needs a b_layout of 1 or 2");
  require(block == 16 || block == 32 || block == 64 || block == 128 || block == 256 || (matrix && block == 0),
          "block_size is " + std::to_string(block) + "; 16, 32, 64, 128 and 256 are known");
  require(matrix || (stored_columns == 0 && first == 0), "b_columns and b_first need a b_layout of 1 or 2");
  require(stored_columns >= 0 && stored_columns <= kMaxSize && first >= 0 && first <= width() - columns,
          "N is " + std::to_string(columns) + " from column " + std::to_string(first) + " on; B has " +
              std::to_string(width()));
  const auto elements = static_cast<std::size_t>(width() * blocks());
  const std::size_t num_scales = scales.empty() ? scales16.size() : scales.size();
  const auto check_size = [&](const char* name, std::size_t size, std::size_t wanted) {
    require(size == wanted, std::string(name) + " has " + std::to_string(size) + " elements; " +
                                std::to_string(wanted) + " are needed");
  };
  if (!matrix) {
    check_size("B", codes.size(), elements * static_cast<std::size_t>(block * bits / 8));
    check_size("scales", num_scales, elements);
    if (!zero_points.empty()) {
      check_size("zero_points", zero_points.size(), static_cast<std::size_t>(columns * ((blocks() * bits + 7) / 8)));
    }
    return;
  }
  const auto bytes = [&](std::size_t count) { return (count * static_cast<std::size_t>(bits) + 7) / 8; };
  check_size("B", codes.size(), bytes(static_cast<std::size_t>(depth) * static_cast<std::size_t>(width())));
  if (num_scales != 1) check_size("scales", num_scales, elements);
  if (!zero_points.empty()) {
    check_size("zero_points", zero_points.size(), has_one_zero_point() ? 1 : bytes(elements));
  }
}

bool NBitsWeights::has_one_zero_point() const {
  // A byte may also be two of 4 bits; those come with two scales.
  return bits == 8 ? zero_points.size() == 1 : scales.size() + scales16.size() == 1;
}

float NBitsWeights::scale(std::int64_t column, std::int64_t at) const {
  const bool one = scales.size() + scales16.size() == 1;
  const auto place = static_cast<std::size_t>(one ? 0 : index(column, at));
  return scales.empty() ? to_float(Half{scales16[place]}) : scales[place];
}

std::int8_t NBitsWeights::zero(std::int64_t column, std::int64_t at) const {
  const int middle = 1 << (bits - 1);
  if (zero_points.empty()) return static_cast<std::int8_t>(layout == NBitsLayout::kBlocks || is_signed ? 0 : -middle);
  std::int64_t place = has_one_zero_point() ? 0 : index(column, at);
  if (layout == NBitsLayout::kBlocks) {  // each column begins with a byte of its own
    place = column * (bits == 8 ? blocks() : (blocks() + 1) / 2 * 2) + at;
  }
  int value = zero_points[static_cast<std::size_t>(bits == 8 ? place : place / 2)];
  if (bits == 4) value = value >> (place % 2 * 4) & 0x0F;
  if (is_signed) value ^= middle;
  return static_cast<std::int8_t>(value - middle);
}

bool NBitsWeights::has_zero_points() const {
  if (layout == NBitsLayout::kBlocks) return !zero_points.empty();
  if (zero_points.empty()) return !is_signed;
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t at = 0; at < blocks(); ++at) {
      if (zero(column, at) != 0) return true;
    }
  }
  return false;
}

namespace {

/// Writes the panels of a matrix, one after the other.
class Packer {
 public:
  Packer(const NBitsWeights& source, std::int64_t matrix, bool exact, const PackedShape& shape, std::byte* image)
      : source_(source),
        matrix_(matrix),
        exact_(exact),
        image_shape_(shape),
        shape_(shape.panel),
        panels_(reinterpret_cast<std::uint8_t*>(image)),
        column_scales_(reinterpret_cast<float*>(image + shape.scales_offset())),
        zero_points_(shape.zero_points ? reinterpret_cast<std::int8_t*>(image + shape.zero_points_offset()) : nullptr),
        // All panels read all pages of [K, N], and other pieces of a matrix read its pages later.
        panel_codes_(source.layout == NBitsLayout::kRows || source.width() != source.columns
                         ? 0
                         : source.codes.size() / static_cast<std::size_t>(source.columns) * kPanelColumns) {}

  void pack(std::int64_t panel) {
    const std::int64_t first = panel * kPanelColumns;
    const std::int64_t count = std::min(kPanelColumns, source_.columns - first);
    const std::int64_t place = image_shape_.place(matrix_, panel);
    std::uint8_t* const base = panels_ + static_cast<std::size_t>(place) * image_shape_.panel_bytes();
    std::fill_n(column_scales_ + place * kPanelColumns, kPanelColumns, 1.0F);
    if (source_.layout != NBitsLayout::kBlocks) pack_matrix(base, first, count);
    for (std::int64_t c = 0; c < count; ++c) {
      if (source_.layout == NBitsLayout::kBlocks) pack_column(base, first + c, c);
      pack_scales(base, place, first + c, c);
      if (zero_points_ != nullptr) pack_zero_points(place, first + c, c);
    }
  }

  /// Lets what panels up to `panel` read leave memory, now and then.
  void release(std::int64_t panel) {
    constexpr std::size_t kReleaseBytes = std::size_t{8} << 20;
    const bool is_last = panel + 1 == image_shape_.panels();
    const std::size_t size = source_.codes.size();
    const std::size_t done = is_last ? size : std::min(size, panel_codes_ * static_cast<std::size_t>(panel + 1));
    if (done - released_ < kReleaseBytes && !is_last) return;
    release_file_pages(source_.codes.data() + released_, done - released_);
    released_ = done;
    if (!is_last) return;
    release_file_pages(source_.scales.data(), source_.scales.size_bytes());
    release_file_pages(source_.scales16.data(), source_.scales16.size_bytes());
  }

 private:
  /// Codes of a chunk of depth and a panel's columns, not yet in lines.
  using Tile = std::array<std::array<std::uint8_t, kPanelColumns>, kChunkDepth>;

  /// Exponent that brings the column's largest scale just below 2^15.
  int exponent(std::int64_t column) const {
    float largest = 0;
    for (std::int64_t b = 0; b < source_.blocks(); ++b) {
      const float size = std::fabs(source_.scale(column, b));
      if (std::isfinite(size)) largest = std::max(largest, size);
    }
    return largest == 0 ? 0 : std::ilogb(largest) - 14;
  }

  /// Packs the codes of a panel out of a matrix. What lies beyond K or N becomes code 0.
  void pack_matrix(std::uint8_t* base, std::int64_t first, std::int64_t count) {
    const PanelView& shape = shape_;
    const std::int64_t chunks = shape.unit_depth / kChunkDepth;
    const std::int64_t chunk_bytes = kChunkDepth * kPanelColumns * source_.bits / 8;
    for (std::int64_t start = 0; start < shape.depth; start += kChunkDepth) {
      Tile tile{};
      load(start, std::min(kChunkDepth, source_.depth - start), first, count, tile);
      const std::int64_t chunk = start / kChunkDepth;
      std::uint8_t* const at =
          base + chunk / chunks * static_cast<std::int64_t>(shape.unit_bytes) + chunk % chunks * chunk_bytes;
      store(tile, at);
    }
  }

  /// Reads `depth` rows of `count` columns, from row `start` and column `first` on; none if depth is below 1.
  void load(std::int64_t start, std::int64_t depth, std::int64_t first, std::int64_t count, Tile& tile) const {
    const bool rows = source_.layout == NBitsLayout::kRows;
    const std::int64_t row_stride = rows ? source_.width() : 1;
    const std::int64_t column_stride = rows ? 1 : source_.depth;
    const auto flip = static_cast<std::uint8_t>(source_.is_signed ? 1 << (source_.bits - 1) : 0);
    for (std::int64_t k = 0; k < depth; ++k) {
      std::array<std::uint8_t, kPanelColumns>& to = tile[static_cast<std::size_t>(k)];
      const std::int64_t from = (start + k) * row_stride + (source_.first + first) * column_stride;
      for (std::int64_t c = 0; c < count; ++c) {
        const std::int64_t place = from + c * column_stride;
        std::uint8_t code = source_.codes[static_cast<std::size_t>(source_.bits == 8 ? place : place / 2)];
        if (source_.bits == 4) code = static_cast<std::uint8_t>(code >> (place % 2 * 4) & 0x0F);
        to[static_cast<std::size_t>(c)] = code ^ flip;
      }
    }
  }

  /// Writes the lines of a chunk.
  void store(const Tile& tile, std::uint8_t* at) const {
    constexpr std::size_t kHalf = kChunkDepth / 2;
    const std::size_t half_lines = source_.bits == 4 ? 4 : 8;
    for (std::size_t column = 0; column < kPanelColumns; column += kLanes) {
      for (std::size_t j = 0; j < half_lines; ++j, at += kLineBytes) {
        for (std::size_t c = 0; c < kLanes; ++c) {
          for (std::size_t i = 0; i < 4; ++i) {
            int code = tile[4 * j + i][column + c];
            if (source_.bits == 4) code |= tile[kHalf + 4 * j + i][column + c] << 4;
            at[4 * c + i] = static_cast<std::uint8_t>(code);
          }
        }
      }
    }
  }

  void pack_column(std::uint8_t* base, std::int64_t column, std::int64_t c) {
    const PanelView& shape = shape_;
    const std::int64_t block_bytes = source_.block * source_.bits / 8;
    const std::uint8_t* const codes = source_.codes.data() + column * source_.blocks() * block_bytes;
    const std::int64_t half_lines = source_.bits == 4 ? 4 : 8;
    const std::int64_t chunk_source = kChunkDepth * source_.bits / 8;
    const std::int64_t source_bytes = source_.blocks() * block_bytes;
    const std::int64_t chunks = shape.unit_depth / kChunkDepth;
    for (std::int64_t unit = 0; unit < shape.units; ++unit) {
      std::uint8_t* const at = base + static_cast<std::size_t>(unit) * shape.unit_bytes;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        const std::int64_t from = (unit * chunks + chunk) * chunk_source;
        std::uint8_t last[32] = {};
        const std::uint8_t* chunk_codes = codes + from;
        if (from + chunk_source > source_bytes) {  // blocks of 16, an odd number of them
          std::memcpy(last, chunk_codes, static_cast<std::size_t>(source_bytes - from));
          chunk_codes = last;
        }
        std::uint8_t* const lines =
            at + (chunk * 2 + c / kLanes) * half_lines * static_cast<std::int64_t>(kLineBytes) + (c % kLanes) * 4;
        std::uint8_t bytes[16];
        if (source_.bits == 4) {
          interleave(chunk_codes, bytes);
          chunk_codes = bytes;
        }
        for (std::int64_t j = 0; j < half_lines; ++j) std::memcpy(lines + j * 64, chunk_codes + 4 * j, 4);
      }
    }
  }

  void pack_scales(std::uint8_t* base, std::int64_t place_of_panel, std::int64_t column, std::int64_t c) {
    const PanelView& shape = shape_;
    const bool whole = source_.block == 0;  // the scale is left to the end
    const int power = exact_ || whole ? 0 : exponent(column);
    column_scales_[place_of_panel * kPanelColumns + c] = whole ? source_.scale(column, 0) : std::ldexp(1.0F, power);
    const std::size_t code_bytes = static_cast<std::size_t>(shape.unit_depth * kPanelColumns * source_.bits / 8);
    for (std::int64_t b = 0; b < (whole ? shape.steps() : source_.blocks()); ++b) {
      const auto unit = static_cast<std::size_t>(b / shape.scales_per_unit);
      const auto place = static_cast<std::size_t>(b % shape.scales_per_unit * kPanelColumns + c);
      std::uint8_t* const at = base + unit * shape.unit_bytes + code_bytes;
      const float value = whole ? 1.0F : source_.scale(column, b);
      if (exact_) {
        std::memcpy(at + place * sizeof(float), &value, sizeof(float));
      } else {
        Half half{};
        from_float(std::ldexp(value, -power), &half);
        std::memcpy(at + place * sizeof(Half), &half, sizeof(Half));
      }
    }
  }

  void pack_zero_points(std::int64_t place, std::int64_t column, std::int64_t c) {
    std::int8_t* const to = zero_points_ + place * shape_.steps() * kPanelColumns + c;
    const bool whole = source_.block == 0;
    for (std::int64_t b = 0; b < (whole ? shape_.steps() : source_.blocks()); ++b) {
      to[b * kPanelColumns] = source_.zero(column, whole ? 0 : b);
    }
  }

  const NBitsWeights& source_;
  std::int64_t matrix_;
  bool exact_;
  const PackedShape& image_shape_;
  const PanelView& shape_;
  std::uint8_t* panels_;
  float* column_scales_;
  std::int8_t* zero_points_;  ///< nullptr when there are none
  std::size_t panel_codes_;   ///< bytes of codes that a panel reads and no later one; 0 when later ones may
  std::size_t released_ = 0;  ///< bytes of codes
};

}  // namespace

PanelView PanelView::with_blocks(std::int64_t depth, std::int64_t block) {
  PanelView panel;
  panel.unit_depth = std::max(kChunkDepth, block);
  panel.units = (depth + panel.unit_depth - 1) / panel.unit_depth;
  panel.depth = panel.units * panel.unit_depth;
  panel.scales_per_unit = static_cast<int>(panel.unit_depth / block);
  return panel;
}

PackedShape::PackedShape(NBitsMatrices sources, bool exact, bool has_zero_points)
    : columns(sources.front().columns), matrices(std::ssize(sources)), zero_points(has_zero_points) {
  const NBitsWeights& source = sources.front();
  const std::int64_t block = source.block == 0 ? best_block(source.depth) : source.block;
  panel = PanelView::with_blocks(source.depth, block);
  panel.bits = source.bits;
  const std::int64_t scale_bytes = kPanelColumns * (exact ? 4 : 2) * panel.scales_per_unit;
  panel.unit_bytes = static_cast<std::size_t>(panel.unit_depth * kPanelColumns * source.bits / 8 + scale_bytes);
}

std::size_t PackedShape::zero_points_offset() const {
  return scales_offset() + static_cast<std::size_t>(panels() * matrices * kPanelColumns) * sizeof(float);
}

std::size_t PackedShape::image_bytes() const {
  const std::int64_t zeros = zero_points ? panels() * matrices * panel.steps() * kPanelColumns : 0;
  const std::size_t end = zero_points_offset() + static_cast<std::size_t>(zeros);
  return (end + kLineBytes - 1) / kLineBytes * kLineBytes;
}

void pack_weights(NBitsMatrices sources, bool exact, const PackedShape& shape, std::byte* image) {
  std::vector<Packer> packers;
  for (const NBitsWeights& source : sources) packers.emplace_back(source, std::ssize(packers), exact, shape, image);
  for (std::int64_t panel = 0; panel < shape.panels(); ++panel) {
    for (Packer& packer : packers) {
      packer.pack(panel);
      packer.release(panel);
    }
  }
}

PackedWeights::PackedWeights(NBitsMatrices sources, bool exact)
    : shape_(sources, exact, std::ranges::any_of(sources, &NBitsWeights::has_zero_points)) {
  const std::shared_ptr<std::byte> memory = allocate_weights(shape_.image_bytes());
  pack_weights(sources, exact, shape_, memory.get());
  image_ = memory;
}

PanelView PackedWeights::panel(std::int64_t index, std::int64_t matrix) const {
  const std::int64_t place = shape_.place(matrix, index);
  PanelView view = shape_.panel;
  const std::byte* const image = image_.get();
  view.data = image + static_cast<std::size_t>(place) * panel_bytes();
  if (has_zero_points()) {
    view.zero_points = reinterpret_cast<const std::int8_t*>(image + shape_.zero_points_offset()) +
                       place * shape_.panel.steps() * kPanelColumns;
  }
  view.column_scale = reinterpret_cast<const float*>(image + shape_.scales_offset()) + place * kPanelColumns;
  return view;
}

}  // namespace genai::kernels
