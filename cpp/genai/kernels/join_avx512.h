#pragma once

// Lanes of 16 vectors are joined at once. Included after the pragma of the instruction set; local to the file.

#include <immintrin.h>

namespace genai::kernels {
namespace {

/// Lane r of the result is kJoin over the lanes of x[r]: i and i + 8, then i and i + 4, and so on. Each stage brings
/// halves of two vectors together, so 16 vectors take 15 joins and twice as many shuffles.
template <auto kJoin>
[[gnu::always_inline]] inline __m512 join_lanes(__m512 (&x)[16]) {
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) {
    x[r] =
        kJoin(_mm512_shuffle_f32x4(x[2 * r], x[2 * r + 1], 0x44), _mm512_shuffle_f32x4(x[2 * r], x[2 * r + 1], 0xEE));
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    x[r] =
        kJoin(_mm512_shuffle_f32x4(x[2 * r], x[2 * r + 1], 0x88), _mm512_shuffle_f32x4(x[2 * r], x[2 * r + 1], 0xDD));
  }
#pragma GCC unroll 2
  for (int r = 0; r < 2; ++r) {
    x[r] = kJoin(_mm512_shuffle_ps(x[2 * r], x[2 * r + 1], 0x44), _mm512_shuffle_ps(x[2 * r], x[2 * r + 1], 0xEE));
  }
  // Lane 4 i + j has row i + 4 j now.
  const __m512i rows = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_ps(rows, kJoin(_mm512_shuffle_ps(x[0], x[1], 0x88), _mm512_shuffle_ps(x[0], x[1], 0xDD)));
}

}  // namespace
}  // namespace genai::kernels
