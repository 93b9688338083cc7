#include "genai/kernels/attention.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)

#include <immintrin.h>

// Only what follows is compiled for the instruction set: a function of another header must not be.
#if defined(__clang__)
#pragma clang attribute push(                                                                                 \
    __attribute__((target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
// GCC 12 sees uninitialised reads in its own AVX-512 header (PR 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "genai/kernels/attention_bf16.h"
#include "genai/kernels/tiles_amx.h"

namespace genai::kernels {
namespace {

/// The products of attention in tiles, 16 or 32 rows at a time.
struct TileProducts {
  static void begin() { Tiles::configure(); }
  static void end() { Tiles::release(); }

  static void multiply_keys(const PromptRange& range, const std::uint16_t* queries, int rows, int first, int end) {
    const int last = (end + kStepKeys - 1) / kStepKeys;
    Tiles::barrier();
    if (rows > Tiles::kSide) {
      key_products<2>(range, queries, first, last);
    } else {
      key_products<1>(range, queries, first, last);
    }
    Tiles::barrier();
  }

  static void multiply_values(const PromptRange& range, int rows, int first, int end, float* out) {
    const int last = (end + kStepKeys - 1) / kStepKeys;
    Tiles::barrier();
    if (rows > Tiles::kSide) {
      all_value_products<2>(range, first, last, out);
    } else {
      all_value_products<1>(range, first, last, out);
    }
    Tiles::barrier();
  }

 private:
  /// Scores of kTiles * 16 rows with the keys of the steps first..last - 1.
  template <int kTiles>
  static void key_products(const PromptRange& range, const std::uint16_t* queries, int first, int last) {
    const std::ptrdiff_t below = range.key_tiles * Tiles::kElements;  // to the next 16 queries, and the next 16 keys
    for (int step = first; step < last; ++step) {
      const std::uint16_t* const keys = range.key_group(2 * step);
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (kTiles == 2) {
        _tile_zero(2);
        _tile_zero(3);
      }
      for (std::ptrdiff_t at = 0; at < below; at += Tiles::kElements) {
        _tile_loadd(4, queries + at, Tiles::kLine);
        _tile_loadd(6, keys + at, Tiles::kLine);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, keys + below + at, Tiles::kLine);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTiles == 2) {
          _tile_loadd(5, queries + below + at, Tiles::kLine);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      float* const out = range.scores + step * kStepKeys;
      _tile_stored(0, out, kScoreBytes);
      _tile_stored(1, out + Tiles::kSide, kScoreBytes);
      if constexpr (kTiles == 2) {
        _tile_stored(2, out + Tiles::kSide * kScoreStride, kScoreBytes);
        _tile_stored(3, out + Tiles::kSide * kScoreStride + Tiles::kSide, kScoreBytes);
      }
    }
  }

  /// Weighted values of kTiles * 16 rows, 16 * kColumns of them from `column` on.
  template <int kTiles, int kColumns>
  static void value_products(const PromptRange& range, int column, int first, int last, float* out) {
    const std::ptrdiff_t padded = range.value_tiles * Tiles::kSide;
    const std::ptrdiff_t stride = padded * static_cast<std::ptrdiff_t>(sizeof(float));
    _tile_zero(0);
    if constexpr (kColumns == 2) _tile_zero(1);
    if constexpr (kTiles == 2) _tile_zero(2);
    if constexpr (kTiles == 2 && kColumns == 2) _tile_zero(3);
    for (int step = first; step < last; ++step) {
      const auto* const weights = reinterpret_cast<const std::byte*>(range.scores) + step * Tiles::kLine;
      const std::uint16_t* const values = range.value_step(step) + column / Tiles::kSide * Tiles::kElements;
      _tile_loadd(4, weights, kScoreBytes);
      _tile_loadd(6, values, Tiles::kLine);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kColumns == 2) {
        _tile_loadd(7, values + Tiles::kElements, Tiles::kLine);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kTiles == 2) {
        _tile_loadd(5, weights + Tiles::kSide * kScoreBytes, kScoreBytes);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (kColumns == 2) _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* const to = out + column;
    _tile_stored(0, to, stride);
    if constexpr (kColumns == 2) _tile_stored(1, to + Tiles::kSide, stride);
    if constexpr (kTiles == 2) _tile_stored(2, to + Tiles::kSide * padded, stride);
    if constexpr (kTiles == 2 && kColumns == 2) _tile_stored(3, to + Tiles::kSide * padded + Tiles::kSide, stride);
  }

  template <int kTiles>
  static void all_value_products(const PromptRange& range, int first, int last, float* out) {
    const int columns = static_cast<int>(range.value_tiles) * Tiles::kSide;
    int column = 0;
    for (; column + 2 * Tiles::kSide <= columns; column += 2 * Tiles::kSide) {
      value_products<kTiles, 2>(range, column, first, last, out);
    }
    if (column < columns) value_products<kTiles, 1>(range, column, first, last, out);
  }
};

}  // namespace

const PromptKernels kPromptsAmx = PromptAttention<TileProducts>::kTable;

}  // namespace genai::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
