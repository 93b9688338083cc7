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
#pragma clang attribute push(__attribute__((target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
// GCC 12 sees uninitialised reads in its own AVX-512 header (PR 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "genai/kernels/attention_bf16.h"

namespace genai::kernels {
namespace {

/// The products of attention in vectors: the sums of up to 6 rows and 4 vectors of columns stay in registers.
struct VectorProducts {
  static constexpr int kSide = Bf16Tiles::kSide;
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxColumns = 4;
  static constexpr int kStepPairs = Bf16Tiles::kDepth / 2;
  static constexpr std::ptrdiff_t kPair = 4;  ///< bytes of a pair of depth

  static void begin() {}
  static void end() {}

  static void multiply_keys(const PromptRange& range, const std::uint16_t* queries, int rows, int first, int end) {
    const std::ptrdiff_t bytes = range.key_tiles * Bf16Tiles::kBytes;  // of 16 queries, and of 16 keys
    const auto* const from = reinterpret_cast<const std::byte*>(queries);
    const int groups = (end + kSide - 1) / kSide;
    for (int group = 2 * first; group < groups;) {
      const int columns = columns_of(groups - group);
      const auto* const keys = reinterpret_cast<const std::byte*>(range.key_group(group));
      for (int row = 0; row < rows; row += kSide) {
        const Product product{from + row / kSide * bytes,
                              Bf16Tiles::kBytes,
                              keys,
                              bytes,
                              Bf16Tiles::kBytes,
                              range.head_dim / 2,
                              range.scores + row * kScoreStride + group * kSide,
                              kScoreStride};
        multiply_rows<Bf16Tiles::kLine>(product, std::min(kSide, rows - row), columns);
      }
      group += columns;
    }
  }

  static void multiply_values(const PromptRange& range, int rows, int first, int end, float* out) {
    const auto* const weights = reinterpret_cast<const std::byte*>(range.scores) + first * Bf16Tiles::kLine;
    const auto* const values = reinterpret_cast<const std::byte*>(range.value_step(first));
    const int vectors = static_cast<int>(range.value_tiles);
    for (int vector = 0; vector < vectors;) {
      const int columns = columns_of(vectors - vector);
      const Product product{weights,
                            Bf16Tiles::kLine,
                            values + vector * Bf16Tiles::kBytes,
                            Bf16Tiles::kBytes,
                            range.value_tiles * Bf16Tiles::kBytes,
                            (end + 1) / 2 - first * kStepPairs,
                            out + vector * kSide,
                            range.value_tiles * kSide};
      multiply_rows<kScoreBytes>(product, rows, columns);
      vector += columns;
    }
  }

 private:
  /// Rows times columns in steps of 32 of depth. Distances are bytes, of `out` floats.
  struct Product {
    const std::byte* rows;
    std::ptrdiff_t row_step;  ///< to a row's next step
    const std::byte* columns;
    std::ptrdiff_t column;       ///< to the next 16 columns
    std::ptrdiff_t column_step;  ///< to the next step
    int pairs;                   ///< of depth
    float* out;
    std::ptrdiff_t out_row;
  };

  static int columns_of(int left) { return left >= kMaxColumns ? kMaxColumns : left >= 2 ? 2 : 1; }

  /// kRow: bytes from a row to the next.
  template <std::ptrdiff_t kRow>
  static void multiply_rows(const Product& all, int rows, int columns) {
    const int runs = (rows + kMaxRows - 1) / kMaxRows;
    for (int run = 0; run < runs; ++run) {
      const int begin = rows * run / runs;
      const int count = rows * (run + 1) / runs - begin;
      Product product = all;
      product.rows += begin * kRow;
      product.out += begin * product.out_row;
      const auto& blocks = columns == kMaxColumns ? kBlocks<kRow, kMaxColumns>
                           : columns == 2         ? kBlocks<kRow, 2>
                                                  : kBlocks<kRow, 1>;
      blocks[static_cast<std::size_t>(count - 1)](product);
    }
  }

  static __m512bh load(const std::byte* line) {
    __m512bh pairs;
    __builtin_memcpy(&pairs, line, sizeof(pairs));
    return pairs;
  }
  static __m512bh load_pair(const std::byte* pair) {
    int bits = 0;
    __builtin_memcpy(&bits, pair, sizeof(bits));
    const __m512i all = _mm512_set1_epi32(bits);
    __m512bh pairs;
    __builtin_memcpy(&pairs, &all, sizeof(pairs));
    return pairs;
  }

  template <std::ptrdiff_t kRow, int kRows, int kColumns>
  static void multiply(const Product& product) {
    __m512 sums[kRows][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sums[r][c] = _mm512_setzero_ps();
    }
    const std::byte* rows = product.rows;
    const std::byte* lines = product.columns;
    for (int left = product.pairs; left > 0; left -= kStepPairs) {
      const std::byte* row = rows;
      const std::byte* line = lines;
      const std::byte* const end = row + std::min(left, kStepPairs) * kPair;
      for (; row < end; row += kPair, line += Bf16Tiles::kLine) {
        __m512bh columns[kColumns];
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) columns[c] = load(line + c * product.column);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const __m512bh same = load_pair(row + r * kRow);
#pragma GCC unroll 16
          for (int c = 0; c < kColumns; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], columns[c], same);
        }
      }
      rows += product.row_step;
      lines += product.column_step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) _mm512_storeu_ps(product.out + r * product.out_row + c * kSide, sums[r][c]);
    }
  }

  /// Entry n - 1 is for n rows.
  using Block = void (*)(const Product&);
  template <std::ptrdiff_t kRow, int kColumns, std::size_t... kIndex>
  static constexpr std::array<Block, kMaxRows> make_blocks(std::index_sequence<kIndex...>) {
    return {&multiply<kRow, static_cast<int>(kIndex) + 1, kColumns>...};
  }
  template <std::ptrdiff_t kRow, int kColumns>
  static constexpr std::array<Block, kMaxRows> kBlocks =
      make_blocks<kRow, kColumns>(std::make_index_sequence<kMaxRows>());
};

}  // namespace

const PromptKernels kPromptsAvx512Bf16 = PromptAttention<VectorProducts>::kTable;

}  // namespace genai::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
