#include "genai/kernels/matmul.h"

#include "genai/base/error.h"

#include <algorithm>

namespace genai::kernels {

namespace {

/// Bytes from row to row. An odd number of lines: rows whose distance is a power of two would share cache sets.
std::int64_t row_stride(const PanelView& shape) {
  const std::int64_t lines = (shape.depth + 63) / 64;
  return 64 * (lines | 1);
}

std::int64_t padded_rows(std::int64_t rows) {
  return (rows + 15) / 16 * 16;
}

}  // namespace

std::size_t QuantizedRows::bytes(std::int64_t rows, const PanelView& shape) {
  const auto step_bytes = static_cast<std::int64_t>(sizeof(float) + sizeof(std::int32_t));
  return static_cast<std::size_t>(padded_rows(rows) * (row_stride(shape) + shape.steps() * step_bytes));
}

QuantizedRows QuantizedRows::at(std::byte* memory, std::int64_t rows, const PanelView& shape) {
  QuantizedRows out;
  out.padded = padded_rows(rows);
  out.stride = row_stride(shape);
  out.codes = reinterpret_cast<std::int8_t*>(memory);
  out.scales = reinterpret_cast<float*>(memory + out.padded * out.stride);
  out.offsets = reinterpret_cast<std::int32_t*>(out.scales + out.padded * shape.steps());
  return out;
}

void QuantizedRows::clear_padding(std::int64_t rows, const PanelView& shape) const {
  if (rows % 2 == 0) return;
  std::fill_n(codes + rows * stride, stride, std::int8_t{0});
  for (std::int64_t step = 0; step < shape.steps(); ++step) {
    scales[step * padded + rows] = 0.0F;
    offsets[step * padded + rows] = 0;
  }
}

std::int64_t Bf16Rows::slab_depth(const PanelView& shape) {
  constexpr std::int64_t kMost = 576;
  const std::int64_t unit = shape.unit_depth;
  const std::int64_t slabs = (shape.depth + kMost - 1) / kMost;
  const std::int64_t even = ((shape.depth + slabs - 1) / slabs + unit - 1) / unit * unit;
  return even <= kMost ? even : std::max<std::int64_t>(kMost / unit, 1) * unit;
}

void Bf16Rows::clear_padding(std::int64_t rows, const PanelView& shape) const {
  const std::int64_t in_group = rows % kGroup;
  if (in_group == 0) return;
  const std::int64_t slab = slab_depth(shape);
  for (std::int64_t start = 0; start < shape.depth; start += slab) {
    const std::int64_t depth = std::min(slab, shape.depth - start);
    std::uint16_t* const last = group(start, depth, rows - in_group);
    constexpr std::int64_t kTileDepth = 32;
    for (std::int64_t at = 0; at < depth; at += kTileDepth) {
      std::fill_n(last + at * kGroup + in_group * kTileDepth, (kGroup - in_group) * kTileDepth, std::uint16_t{0});
    }
  }
}

#if defined(__x86_64__)
namespace {

/// Put together here, as the files of an instruction set must run no code before it is chosen.
MatMulKernels with_tiles(const Bf16Kernels& tiles) {
  MatMulKernels kernels = kMatMulAvx512Vnni;
  kernels.load_row_bf16 = tiles.load_row_bf16;
  kernels.multiply_bf16 = tiles.multiply_bf16;
  return kernels;
}

}  // namespace
#endif

const MatMulKernels& matmul_kernels(Isa isa) {
#if defined(__x86_64__)
  static const MatMulKernels amx = with_tiles(kBf16Amx);
#endif
  switch (isa) {
    case Isa::kPlain:
      return kMatMulPlain;
#if defined(__aarch64__)
    case Isa::kNeon:
      return kMatMulNeon;
    case Isa::kNeonDot:
      return kMatMulNeonDot;
    case Isa::kNeonI8mm:
      return kMatMulNeonI8mm;
#else
    case Isa::kNeon:
    case Isa::kNeonDot:
    case Isa::kNeonI8mm:
      break;
#endif
#if defined(__x86_64__)
    case Isa::kAvx2:
    case Isa::kAvx512:  // without products of int8
      return kMatMulAvx2;
    case Isa::kAvxVnni:
      return kMatMulAvxVnni;
    case Isa::kAvx512Vnni:
    case Isa::kAvx512Bf16:  // half as fast in bfloat16 as in int8
      return kMatMulAvx512Vnni;
    case Isa::kAmx:
      return amx;
#else
    case Isa::kAvx2:
    case Isa::kAvx512:
    case Isa::kAvxVnni:
    case Isa::kAvx512Vnni:
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      break;
#endif
  }
  check(false, "matrix kernels of an instruction set that this build lacks");
  return kMatMulPlain;
}

}  // namespace genai::kernels
