#include "genai/kernels/nbits_weights.h"

#include "genai/base/error.h"
#include "genai/base/memory.h"
#include "genai/kernels/vec_element.h"
#include "genai/kernels/weight_memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

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
  require(block == 16 || block == 32 || block == 64 || block == 128 || block == 256,
          "block_size is " + std::to_string(block) + "; 16, 32, 64, 128 and 256 are known");
  const auto elements = static_cast<std::size_t>(columns * blocks());
  const auto check_size = [&](const char* name, std::size_t size, std::size_t wanted) {
    require(size == wanted, std::string(name) + " has " + std::to_string(size) + " elements; " +
                                std::to_string(wanted) + " are needed");
  };
  check_size("B", codes.size(), elements * static_cast<std::size_t>(block * bits / 8));
  check_size("scales", scales.empty() ? scales16.size() : scales.size(), elements);
  if (!zero_points.empty()) {
    check_size("zero_points", zero_points.size(), static_cast<std::size_t>(columns * ((blocks() * bits + 7) / 8)));
  }
}

/// Writes one panel after the other.
class PackedWeights::Packer {
 public:
  Packer(const NBitsWeights& source, bool exact, PackedWeights& out) : source_(source), exact_(exact), out_(out) {}

  void pack(std::int64_t panel) {
    const std::int64_t first = panel * kPanelColumns;
    const std::int64_t count = std::min(kPanelColumns, source_.columns - first);
    for (std::int64_t c = 0; c < count; ++c) pack_column(panel, first + c, c);
  }

 private:
  float scale(std::int64_t column, std::int64_t block) const {
    const auto at = static_cast<std::size_t>(column * source_.blocks() + block);
    return source_.scales.empty() ? to_float(Half{source_.scales16[at]}) : source_.scales[at];
  }

  /// Exponent that brings the column's largest scale just below 2^15.
  int exponent(std::int64_t column) const {
    float largest = 0;
    for (std::int64_t b = 0; b < source_.blocks(); ++b) {
      const float size = std::fabs(scale(column, b));
      if (std::isfinite(size)) largest = std::max(largest, size);
    }
    return largest == 0 ? 0 : std::ilogb(largest) - 14;
  }

  void pack_column(std::int64_t panel, std::int64_t column, std::int64_t c) {
    const PanelView& shape = out_.shape_;
    auto* const base =
        reinterpret_cast<std::uint8_t*>(out_.data_.get()) + static_cast<std::size_t>(panel) * out_.panel_bytes();
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
    pack_scales(base, panel, column, c);
    if (out_.has_zero_points()) pack_zero_points(panel, column, c);
  }

  void pack_scales(std::uint8_t* base, std::int64_t panel, std::int64_t column, std::int64_t c) {
    const PanelView& shape = out_.shape_;
    const int power = exact_ ? 0 : exponent(column);
    out_.column_scale_[static_cast<std::size_t>(panel * kPanelColumns + c)] = std::ldexp(1.0F, power);
    const std::size_t code_bytes = static_cast<std::size_t>(shape.unit_depth * kPanelColumns * source_.bits / 8);
    for (std::int64_t b = 0; b < source_.blocks(); ++b) {
      const auto unit = static_cast<std::size_t>(b / shape.scales_per_unit);
      const auto place = static_cast<std::size_t>(b % shape.scales_per_unit * kPanelColumns + c);
      std::uint8_t* const at = base + unit * shape.unit_bytes + code_bytes;
      const float value = scale(column, b);
      if (exact_) {
        std::memcpy(at + place * sizeof(float), &value, sizeof(float));
      } else {
        Half half{};
        from_float(std::ldexp(value, -power), &half);
        std::memcpy(at + place * sizeof(Half), &half, sizeof(Half));
      }
    }
  }

  void pack_zero_points(std::int64_t panel, std::int64_t column, std::int64_t c) {
    const std::int64_t row = (source_.blocks() * source_.bits + 7) / 8;
    const std::uint8_t* const from = source_.zero_points.data() + column * row;
    std::int8_t* const to = out_.zero_points_.data() + panel * out_.shape_.steps() * kPanelColumns + c;
    for (std::int64_t b = 0; b < source_.blocks(); ++b) {
      const int value = source_.bits == 8 ? from[b] : (from[b / 2] >> (b % 2 * 4)) & 0x0F;
      to[b * kPanelColumns] = static_cast<std::int8_t>(value - (1 << (source_.bits - 1)));
    }
  }

  const NBitsWeights& source_;
  bool exact_;
  PackedWeights& out_;
};

PackedWeights::PackedWeights(const NBitsWeights& source, bool exact) : columns_(source.columns) {
  shape_.unit_depth = std::max(kChunkDepth, source.block);
  shape_.units = (source.depth + shape_.unit_depth - 1) / shape_.unit_depth;
  shape_.depth = shape_.units * shape_.unit_depth;
  shape_.bits = source.bits;
  shape_.scales_per_unit = static_cast<int>(shape_.unit_depth / source.block);
  const std::int64_t scale_bytes = kPanelColumns * (exact ? 4 : 2) * shape_.scales_per_unit;
  shape_.unit_bytes = static_cast<std::size_t>(shape_.unit_depth * kPanelColumns * source.bits / 8 + scale_bytes);
  const std::size_t total = panel_bytes() * static_cast<std::size_t>(panels());
  data_ = allocate_weights(total);
  column_scale_.assign(static_cast<std::size_t>(panels() * kPanelColumns), 1.0F);
  if (!source.zero_points.empty()) {
    zero_points_.assign(static_cast<std::size_t>(panels() * shape_.steps() * kPanelColumns), 0);
  }
  Packer packer(source, exact, *this);
  constexpr std::size_t kReleaseBytes = std::size_t{8} << 20;
  const std::size_t panel_codes = source.codes.size() / static_cast<std::size_t>(columns_) * kPanelColumns;
  std::size_t released = 0;
  for (std::int64_t panel = 0; panel < panels(); ++panel) {
    packer.pack(panel);
    const std::size_t done = std::min(source.codes.size(), panel_codes * static_cast<std::size_t>(panel + 1));
    if (done - released < kReleaseBytes && panel + 1 < panels()) continue;
    release_file_pages(source.codes.data() + released, done - released);
    released = done;
  }
  release_file_pages(source.scales.data(), source.scales.size_bytes());
  release_file_pages(source.scales16.data(), source.scales16.size_bytes());
}

PanelView PackedWeights::panel(std::int64_t index) const {
  PanelView view = shape_;
  view.data = data_.get() + static_cast<std::size_t>(index) * panel_bytes();
  if (has_zero_points()) view.zero_points = zero_points_.data() + index * shape_.steps() * kPanelColumns;
  view.column_scale = column_scale_.data() + index * kPanelColumns;
  return view;
}

std::size_t PackedWeights::bytes() const {
  return panel_bytes() * static_cast<std::size_t>(panels()) + zero_points_.size() +
         column_scale_.size() * sizeof(float);
}

std::shared_ptr<const PackedWeights> packed_weights(const NBitsWeights& source, bool exact) {
  const std::optional<FilePlace> place = file_place(source.codes.data());
  if (!place) return std::make_shared<const PackedWeights>(source, exact);
  // A file may be written anew in its place, so some of the content belongs to the key.
  std::size_t content = 0;
  const auto mix = [&content](std::size_t value) { content = content * 1099511628211ULL + value; };
  for (std::size_t i = 0; i < source.codes.size(); i += 1 + source.codes.size() / 1024) mix(source.codes[i]);
  for (std::size_t i = 0; i < source.scales.size(); i += 1 + source.scales.size() / 1024) {
    mix(std::bit_cast<std::uint32_t>(source.scales[i]));
  }
  for (std::size_t i = 0; i < source.scales16.size(); i += 1 + source.scales16.size() / 1024) mix(source.scales16[i]);
  for (const std::uint8_t zero : source.zero_points) mix(zero);
  using Key = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, int, std::int64_t, bool, std::size_t>;
  const Key key{place->file, place->offset, source.depth, source.columns, source.bits, source.block, exact, content};
  static std::mutex mutex;
  static auto& known = *new std::map<Key, std::weak_ptr<const PackedWeights>>;
  {
    const std::lock_guard lock(mutex);
    std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
    if (const auto found = known.find(key); found != known.end()) {
      if (std::shared_ptr<const PackedWeights> weights = found->second.lock()) return weights;
    }
  }
  auto made = std::make_shared<const PackedWeights>(source, exact);
  const std::lock_guard lock(mutex);
  known[key] = made;
  return made;
}

}  // namespace genai::kernels
