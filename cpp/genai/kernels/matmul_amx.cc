#include "genai/kernels/matmul.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__x86_64__)

#include <immintrin.h>

// Only what follows is compiled for the instruction set: a function of another header must not be.
#if defined(__clang__)
#pragma clang attribute push(                                                                                 \
    __attribute__((                                                                                           \
        target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
// GCC 12 sees uninitialised reads in its own AVX-512 header (PR 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "genai/kernels/dot_avx512.h"
#include "genai/kernels/tiles_amx.h"
#include "genai/kernels/unrolled.h"

namespace genai::kernels {
namespace {

/// Few rows as with AVX-512 VNNI; more in tiles of bfloat16, which keep more of the activations than int8 does and need
/// no scaling of sums.
struct MatMulTiles {
  static constexpr std::int64_t kLine = 64;  ///< bytes
  static constexpr int kHalves = 2;          ///< of a panel
  static constexpr int kTileSide = 16;
  static constexpr std::int64_t kTileDepth = 32;
  static constexpr std::int64_t kTileBytes = 1024;

  static void load_row_bf16(const float* x, const PanelView& shape, std::int64_t row, const Bf16Rows& rows) {
    const std::int64_t slab = Bf16Rows::slab_depth(shape);
    const std::int64_t in_group = row % Bf16Rows::kGroup;
    for (std::int64_t start = 0; start < shape.depth; start += slab) {
      const std::int64_t depth = std::min(slab, shape.depth - start);
      std::uint16_t* to = rows.group(start, depth, row - in_group) + in_group * kTileDepth;
      for (std::int64_t i = start; i < start + depth; i += kTileDepth, to += Bf16Rows::kGroup * kTileDepth) {
        Tiles::store_row(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16), to);
      }
    }
  }

  /// Weights of 32 columns as tiles: to[depth / 32][2 halves][16 pairs of depth][16 columns][2].
  template <int kBits>
  static void unpack_bf16(const PanelView& w, std::int64_t first_unit, std::int64_t units, std::byte* to) {
    constexpr std::int64_t kHalfLines = kBits == 4 ? 4 : 8;
    const std::int64_t chunks = w.unit_depth / kChunkDepth;
    for (std::int64_t unit = first_unit; unit < first_unit + units; ++unit) {
      const std::byte* const lines = w.data + static_cast<std::size_t>(unit) * w.unit_bytes;
      for (std::size_t at = 0; at < w.unit_bytes; at += kLine) _mm_prefetch(lines + 2 * w.unit_bytes + at, _MM_HINT_T0);
      const auto* const scales = reinterpret_cast<const Half*>(lines + chunks * kHalves * kHalfLines * kLine);
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        for (int half = 0; half < kHalves; ++half, to += kTileBytes) {
          const int column = half * kLanes;
          // Blocks of 16 are two to a chunk.
          const std::int64_t second = w.scales_per_unit == 2 ? kPanelColumns : 0;
          const std::int8_t* const zeros =
              w.zero_points == nullptr ? nullptr : w.zero_points + unit * w.scales_per_unit * kPanelColumns + column;
          const Affine first_part = Affine::of<kBits>(scales + column, zeros);
          const Affine second_part =
              second == 0 ? first_part
                          : Affine::of<kBits>(scales + second + column, zeros == nullptr ? nullptr : zeros + second);
          unpack_tile<kBits>(lines + (chunk * kHalves + half) * kHalfLines * kLine, first_part, second_part, to);
        }
      }
    }
  }

  /// A weight is (kBase + code) * scale + shift, exactly.
  struct Affine {
    __m512 scale;
    __m512 shift;

    template <int kBits>
    static Affine of(const Half* scales, const std::int8_t* zeros) {
      const __m512 scale = VecAvx512::load(scales).v;
      // The base that code_at() adds and the zero point.
      __m512 zero = _mm512_set1_ps(kBits == 4 ? 128.0F + 8.0F : 256.0F + 128.0F);
      if (zeros != nullptr) zero = _mm512_add_ps(zero, VecAvx512::load(zeros).v);
      return {scale, _mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), zero), scale)};
    }
  };

  /// 128 or 256 plus the code at bit kBit of each lane: the code becomes part of a float's fraction.
  template <int kBits, int kBit>
  static __m512 code_at(__m512i line) {
    constexpr int kPlace = kBits == 4 ? 16 : 15;
    constexpr int kMask = (1 << kBits) - 1;
    __m512i moved = line;
    if constexpr (kBit < kPlace) moved = _mm512_slli_epi32(line, kPlace - kBit);
    if constexpr (kBit > kPlace) moved = _mm512_srli_epi32(line, kBit - kPlace);
    constexpr int kAndOr = 0xEA;  // (a & b) | c
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        moved, _mm512_set1_epi32(kMask << kPlace), _mm512_set1_epi32(kBits == 4 ? 0x43000000 : 0x43800000), kAndOr));
  }

  template <int kBits, int kBit>
  static __m512 weight_at(__m512i line, const Affine& affine) {
    return _mm512_fmadd_ps(code_at<kBits, kBit>(line), affine.scale, affine.shift);
  }

  template <int kBits>
  static void unpack_tile(const std::byte* lines, const Affine& first, const Affine& second, std::byte* to) {
    if constexpr (kBits == 4) {
      unrolled<4>([&](auto j) __attribute__((always_inline)) {
        const __m512i line = _mm512_loadu_si512(lines + j * kLine);
        std::byte* const low = to + 2 * j * kLine;
        std::byte* const high = low + 8 * kLine;
        Tiles::store_pairs(weight_at<4, 0>(line, first), weight_at<4, 8>(line, first), low);
        Tiles::store_pairs(weight_at<4, 16>(line, first), weight_at<4, 24>(line, first), low + kLine);
        Tiles::store_pairs(weight_at<4, 4>(line, second), weight_at<4, 12>(line, second), high);
        Tiles::store_pairs(weight_at<4, 20>(line, second), weight_at<4, 28>(line, second), high + kLine);
      });
    } else {
      unrolled<8>([&](auto j) __attribute__((always_inline)) {
        const __m512i line = _mm512_loadu_si512(lines + j * kLine);
        const Affine& affine = j < 4 ? first : second;
        Tiles::store_pairs(weight_at<8, 0>(line, affine), weight_at<8, 8>(line, affine), to + 2 * j * kLine);
        Tiles::store_pairs(weight_at<8, 16>(line, affine), weight_at<8, 24>(line, affine), to + (2 * j + 1) * kLine);
      });
    }
  }

  /// Adds `tiles` of depth to out[kRows][32], or sets it if kFirst: tiles 0..3 are sums, 4 and 5 rows, 6 and 7 columns.
  template <int kRows, bool kFirst>
  static void add_rows(const std::uint16_t* x, const std::byte* weights, std::int64_t tiles, float* out) {
    constexpr std::int64_t kOutStride = kPanelColumns * sizeof(float);
    constexpr bool kTwo = kRows == 2 * kTileSide;
    float* const below = out + kTileSide * kPanelColumns;
    if constexpr (kFirst) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, out, kOutStride);
      _tile_loadd(1, out + kLanes, kOutStride);
      if constexpr (kTwo) {
        _tile_loadd(2, below, kOutStride);
        _tile_loadd(3, below + kLanes, kOutStride);
      }
    }
    for (std::int64_t t = 0; t < tiles; ++t, x += Bf16Rows::kGroup * kTileDepth, weights += 2 * kTileBytes) {
      _tile_loadd(4, x, kLine);
      _tile_loadd(6, weights, kLine);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, weights + kTileBytes, kLine);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kTwo) {
        _tile_loadd(5, x + kTileSide * kTileDepth, kLine);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, out, kOutStride);
    _tile_stored(1, out + kLanes, kOutStride);
    if constexpr (kTwo) {
      _tile_stored(2, below, kOutStride);
      _tile_stored(3, below + kLanes, kOutStride);
    }
  }

  /// One panel and one slab of depth, which begins at `start`.
  template <bool kFirst>
  static void add_slab(const PanelView& w, const Bf16Rows& rows, std::int64_t start, std::int64_t depth,
                       std::int64_t first, std::int64_t count, float* out, std::byte* weights) {
    if (w.bits == 4) {
      unpack_bf16<4>(w, start / w.unit_depth, depth / w.unit_depth, weights);
    } else {
      unpack_bf16<8>(w, start / w.unit_depth, depth / w.unit_depth, weights);
    }
    Tiles::barrier();
    const std::int64_t tiles = depth / kTileDepth;
    for (std::int64_t row = 0; row < count; row += Bf16Rows::kGroup) {
      const std::uint16_t* const x = rows.group(start, depth, first + row);
      if (count - row > kTileSide) {
        add_rows<2 * kTileSide, kFirst>(x, weights, tiles, out + row * kPanelColumns);
      } else {
        add_rows<kTileSide, kFirst>(x, weights, tiles, out + row * kPanelColumns);
      }
    }
    Tiles::barrier();
  }

  /// Slab after slab, so that the rows of a slab stay in the second-level cache while all panels pass.
  static void multiply_bf16(std::span<const PanelView> panels, const Bf16Rows& rows, std::int64_t first,
                            std::int64_t count, float* out, std::byte* scratch) {
    const PanelView& shape = panels.front();
    const std::int64_t slab = Bf16Rows::slab_depth(shape);
    const std::int64_t panel_out = (count + Bf16Rows::kGroup - 1) / Bf16Rows::kGroup * Bf16Rows::kGroup * kPanelColumns;
    Tiles::configure();
    for (std::int64_t start = 0; start < shape.depth; start += slab) {
      const std::int64_t depth = std::min(slab, shape.depth - start);
      float* to = out;
      for (const PanelView& panel : panels) {
        if (start == 0) {
          add_slab<true>(panel, rows, start, depth, first, count, to, scratch);
        } else {
          add_slab<false>(panel, rows, start, depth, first, count, to, scratch);
        }
        to += panel_out;
      }
    }
    Tiles::release();
  }

  static MatMulKernels table() {
    MatMulKernels kernels = kMatMulAvx512Vnni;  // which is there before any code runs
    kernels.load_row_bf16 = &load_row_bf16;
    kernels.multiply_bf16 = &multiply_bf16;
    return kernels;
  }
};

}  // namespace

const MatMulKernels kMatMulAmx = MatMulTiles::table();

}  // namespace genai::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
