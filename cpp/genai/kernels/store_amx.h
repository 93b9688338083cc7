#pragma once

#include "genai/kernels/matmul.h"
#include "genai/kernels/tiles_amx.h"
#include "genai/kernels/vec_avx512.h"
#include "genai/kernels/vec_math.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

// How sums of tiles are stored as results. Included after the pragma of the instruction set; local to the file.
namespace genai::kernels {
namespace {

/// Results of up to 32 rows that are still to be stored: block[rows][32].
struct Strip {
  const float* block = nullptr;
  const std::int64_t* places = nullptr;
  std::int64_t rows = 0;
  std::int64_t first = 0;  ///< row of the product that is the strip's first
};

/// Leaves sums where they are.
struct StoresNothing {
  static void store(const Strip& /*strip*/, std::int64_t /*from*/, std::int64_t /*to*/) {}
};

/// Stores results of type T; kGated: columns 0..15 are those of the gate.
template <typename T, bool kGated>
struct Storer {
  const PanelOutput& output;

  static VecAvx512 affine(const float* sums, const float* scale, const float* bias) {
    const VecAvx512 x = VecAvx512::load(sums) * VecAvx512::load(scale);
    return bias == nullptr ? x : x + VecAvx512::load(bias);
  }
  static void put(VecAvx512 x, std::int64_t columns, T* to) {
    if (columns >= kLanes) return x.store(to);
    const auto mask = static_cast<__mmask16>((1U << columns) - 1);
    if constexpr (std::is_same_v<T, float>) {
      _mm512_mask_storeu_ps(to, mask, x.v);
    } else {
      _mm256_mask_storeu_epi16(to, mask, _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
    }
  }

  [[gnu::always_inline]] void store(const Strip& strip, std::int64_t from, std::int64_t to) const {
    for (std::int64_t m = from; m < to; ++m) {
      const float* const sums = strip.block + m * kPanelColumns;
      T* const row = static_cast<T*>(output.data) + strip.places[m] * output.stride;
      if constexpr (kGated) {
        const VecAvx512 gate = affine(sums, output.gate_scale, output.gate_bias);
        put(silu_of(gate) * affine(sums + kLanes, output.scale, output.bias), output.columns, row);
      } else {
        put(affine(sums, output.scale, output.bias), output.columns, row);
        if (output.columns <= kLanes) continue;
        const float* const bias = output.bias == nullptr ? nullptr : output.bias + kLanes;
        put(affine(sums + kLanes, output.scale + kLanes, bias), output.columns - kLanes, row + kLanes);
      }
    }
  }
};

/// Stores results with a gate as rows of another product.
struct TileStorer {
  const PanelOutput& output;

  [[gnu::always_inline]] void store(const Strip& strip, std::int64_t from, std::int64_t to) const {
    using Floats = Storer<float, true>;
    std::uint16_t* const rows = output.tiles + strip.first * output.tiles_depth;
    for (std::int64_t m = from; m < to; ++m) {
      const float* const sums = strip.block + m * kPanelColumns;
      const VecAvx512 gate = Floats::affine(sums, output.gate_scale, output.gate_bias);
      const VecAvx512 x = silu_of(gate) * Floats::affine(sums + kLanes, output.scale, output.bias);
      const __m256bh rounded = _mm512_cvtneps_pbh(x.v);
      __builtin_memcpy(rows + m * Tiles::kDepth, &rounded, sizeof(rounded));
    }
  }
};

}  // namespace
}  // namespace genai::kernels
