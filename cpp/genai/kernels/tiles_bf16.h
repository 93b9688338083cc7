#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// Operands of products of bfloat16. Included after the pragma of the instruction set; local to the file.
namespace genai::kernels {
namespace {

/// Tiles of 16 rows of 64 bytes. A product takes rows [16][32] and columns [16 pairs of depth][16][2].
struct Bf16Tiles {
  static constexpr int kSide = 16;
  static constexpr int kDepth = 32;
  static constexpr std::ptrdiff_t kLine = 64;     ///< bytes of a row
  static constexpr std::ptrdiff_t kBytes = 1024;  ///< of a tile
  static constexpr std::ptrdiff_t kElements = kBytes / 2;

  /// Stores 32 neighbours in depth.
  static void store_row(__m512 low, __m512 high, void* to) {
    const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
    __builtin_memcpy(to, &both, sizeof(both));
  }

  /// Stores pairs of depth, one for each column.
  static void store_pairs(__m512 even, __m512 odd, void* to) {
    alignas(64) static constexpr std::uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                  21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                  11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512bh both = _mm512_cvtne2ps_pbh(odd, even);
    __m512i bits;
    __builtin_memcpy(&bits, &both, sizeof(bits));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), bits));
  }
};

}  // namespace
}  // namespace genai::kernels
