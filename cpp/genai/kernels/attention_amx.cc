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

#include "genai/kernels/attention_impl.h"
#include "genai/kernels/tiles_amx.h"
#include "genai/kernels/vec_avx512.h"

namespace genai::kernels {
namespace {

/// Attention of rows of prompts: both products take bfloat16 operands in tiles, sums and softmax are float32.
///
/// Rows are computed in strips of up to 32. For a strip, scores of the keys of a range that some of its rows see are
/// made, softened to weights row by row, and multiplied with the values. What a row does not see has weight 0, and the
/// product of tiles adds it like nothing: the row has the same bits in any strip.
struct PromptAttention {
  using Float = Attention<VecAvx512>;

  static constexpr int kSide = Tiles::kSide;
  static constexpr int kStripRows = 2 * kSide;
  static constexpr int kStepKeys = 32;  ///< depth of a tile of values
  static constexpr int kSteps = kRangeKeys / kStepKeys;
  static constexpr std::ptrdiff_t kTileElements = Tiles::kBytes / 2;
  static constexpr std::ptrdiff_t kScoreBytes = kScoreStride * 4;  ///< from a row of scores to the next

  static_assert(kGroupKeys == kSide && kPromptRowStep == kSide);

  // ---- queries ----

  /// Rows of queries that are fetched before they are needed: heads lie apart.
  static constexpr int kAheadRows = 12;

  static void prefetch(const void* from, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += Tiles::kLine)
      VecAvx512::prefetch(static_cast<const std::byte*>(from) + at);
  }

  template <typename T>
  static const T* query_row(const AttentionShape& shape, const AttentionTensors& tensors, const QueryTile& tile,
                            int row) {
    const std::int64_t token = tile.first_token + (tile.first_row + row) / shape.group();
    const std::int64_t head = tile.kv_head * shape.group() + (tile.first_row + row) % shape.group();
    return reinterpret_cast<const T*>(tensors.query) + token * tensors.query_stride + head * shape.head_dim;
  }

  /// Tiles of 16 rows and 32 dimensions: [rows / 16][head_dim / 32][16][32]. Rows and dimensions beyond the end are 0.
  template <typename T>
  static void pack_queries_as(const AttentionShape& shape, const AttentionTensors& tensors, const QueryTile& tile,
                              std::uint16_t* packed, float* scratch) {
    const std::ptrdiff_t depth = shape.tiled_head_dim();
    const __m512 scale = _mm512_set1_ps(shape.scale);
    for (int row = 0; row < (tile.num_rows + kSide - 1) / kSide * kSide; ++row) {
      std::uint16_t* to = packed + row / kSide * kSide * depth + row % kSide * Tiles::kDepth;
      if (row >= tile.num_rows) {
        for (std::ptrdiff_t d = 0; d < depth; d += Tiles::kDepth, to += kTileElements) {
          _mm512_storeu_si512(to, _mm512_setzero_si512());
        }
        continue;
      }
      if (row + kAheadRows < tile.num_rows) {
        prefetch(query_row<T>(shape, tensors, tile, row + kAheadRows), shape.head_dim * sizeof(T));
      }
      Float::prepare_row(shape, tensors, query_row<T>(shape, tensors, tile, row), tensors.query_norm,
                         tile.past + (tile.first_row + row) / shape.group(), scratch, scratch + shape.head_dim);
      for (int d = 0; d < shape.head_dim; d += Tiles::kDepth, to += kTileElements) {
        const __m512 low = _mm512_mul_ps(_mm512_loadu_ps(scratch + d), scale);
        const __m512 high = d + kSide < shape.head_dim ? _mm512_mul_ps(_mm512_loadu_ps(scratch + d + kSide), scale)
                                                       : _mm512_setzero_ps();
        Tiles::store_row(low, high, to);
      }
    }
  }

  static void pack_queries(const AttentionShape& shape, const AttentionTensors& tensors, const QueryTile& tile,
                           float* packed, float* scratch) {
    auto* const to = reinterpret_cast<std::uint16_t*>(packed);
    if (shape.io == ElementKind::kFloat16) return pack_queries_as<Half>(shape, tensors, tile, to, scratch);
    pack_queries_as<float>(shape, tensors, tile, to, scratch);
  }

  // ---- keys and values of a range ----

  /// Working memory of a range, in the memory of scores.
  struct Range {
    std::uint16_t* keys;    ///< [groups][head_dim / 32][16 pairs of dimensions][16 keys][2]
    std::uint16_t* values;  ///< [steps][value_dim / 16][16 pairs of keys][16 columns][2]
    float* scores;          ///< [32][kScoreStride]; a row's weights, as bfloat16, take the place of its scores
    float* key_scales;      ///< [keys], int8 only
    float* value_scales;
    std::ptrdiff_t key_tiles;    ///< of a group
    std::ptrdiff_t value_tiles;  ///< of a step
    int first_step;
    int last_step;

    Range(const AttentionShape& shape, float* memory, int first_group, int last_group)
        : key_tiles(shape.tiled_head_dim() / Tiles::kDepth),
          value_tiles(shape.value_dim / kSide),
          first_step(first_group / 2),
          last_step((last_group + 1) / 2) {
      keys = reinterpret_cast<std::uint16_t*>(memory);
      values = keys + kGroups * key_tiles * kTileElements;
      scores = reinterpret_cast<float*>(values + kSteps * value_tiles * kTileElements);
      key_scales = scores + kStripRows * kScoreStride;
      value_scales = key_scales + kRangeKeys;
    }

    std::uint16_t* key_group(int group) const { return keys + group * key_tiles * kTileElements; }
    std::uint16_t* value_step(int step) const { return values + step * value_tiles * kTileElements; }
  };

  static void zero_line(void* to) { _mm512_storeu_si512(to, _mm512_setzero_si512()); }
  static void zero(std::uint16_t* to, std::ptrdiff_t lines) {
    for (std::ptrdiff_t i = 0; i < lines; ++i) zero_line(to + i * 32);
  }

  template <typename TC>
  static void load_keys(const TC* keys, const TC* ahead, std::ptrdiff_t stride, int head_dim, std::uint16_t* to) {
    int d = 0;
    for (; d < head_dim; d += 2, to += 2 * kSide) {
      VecAvx512::prefetch(ahead + d * stride);
      VecAvx512::prefetch(ahead + (d + 1) * stride);
      Tiles::store_pairs(VecAvx512::load(keys + d * stride).v, VecAvx512::load(keys + (d + 1) * stride).v, to);
    }
    if (d % Tiles::kDepth != 0) zero(to, kSide / 2);
  }

  /// 16 keys' values, of which `count` are there, to half of the tiles of a step.
  template <typename TC>
  static void load_values(const TC* values, const TC* ahead, int value_dim, int count, std::uint16_t* to) {
    for (int i = 0; i < kGroupKeys; i += 2, to += 2 * kSide) {
      const TC* const row = values + static_cast<std::ptrdiff_t>(i) * value_dim;
      prefetch(ahead + static_cast<std::ptrdiff_t>(i) * value_dim,
               2 * sizeof(TC) * static_cast<std::size_t>(value_dim));
      std::uint16_t* tile = to;
      for (int column = 0; column < value_dim; column += kSide, tile += kTileElements) {
        const __m512 even = i < count ? VecAvx512::load(row + column).v : _mm512_setzero_ps();
        const __m512 odd = i + 1 < count ? VecAvx512::load(row + value_dim + column).v : _mm512_setzero_ps();
        Tiles::store_pairs(even, odd, tile);
      }
    }
  }

  /// Values of keys that are not there are 0, as they meet weights of 0.
  template <typename TC>
  static void load_range(const AttentionShape& shape, const RangeView<TC>& view, const Range& range) {
    for (int group = 2 * range.first_step; group < 2 * range.last_step; ++group) {
      std::uint16_t* const keys = range.key_group(group);
      std::uint16_t* const values = range.value_step(group / 2) + group % 2 * kTileElements / 2;
      const bool is_there = group >= view.first && group < view.last;
      const int count = is_there ? std::min(kGroupKeys, view.end - group * kGroupKeys) : 0;
      if (is_there) {
        const int next = std::min(group + 1, view.last - 1);
        load_keys(view.keys[group], view.keys[next], view.key_stride, shape.head_dim, keys);
        load_values(view.values[group], view.values[next], shape.value_dim, count, values);
      } else {
        zero(keys, range.key_tiles * kSide);
        for (std::ptrdiff_t t = 0; t < range.value_tiles; ++t) zero(values + t * kTileElements, kSide / 2);
      }
      if constexpr (std::is_same_v<TC, std::int8_t>) {
        const auto mask = static_cast<__mmask16>((1U << count) - 1);
        const auto copy = [&](const float* from, float* to) {
          _mm512_storeu_ps(to + group * kGroupKeys, _mm512_maskz_loadu_ps(mask, from));
        };
        copy(is_there ? view.key_scales[group] : range.key_scales, range.key_scales);
        copy(is_there ? view.value_scales[group] : range.value_scales, range.value_scales);
      }
    }
  }

  // ---- products ----

  /// Scores of kTiles * 16 rows with the keys of the steps first..last - 1.
  template <int kTiles>
  static void multiply_keys(const Range& range, const std::uint16_t* queries, int first, int last) {
    const std::ptrdiff_t below = range.key_tiles * kTileElements;  // to the next 16 queries, and the next 16 keys
    for (int step = first; step < last; ++step) {
      const std::uint16_t* const keys = range.key_group(2 * step);
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (kTiles == 2) {
        _tile_zero(2);
        _tile_zero(3);
      }
      for (std::ptrdiff_t at = 0; at < below; at += kTileElements) {
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
      _tile_stored(1, out + kSide, kScoreBytes);
      if constexpr (kTiles == 2) {
        _tile_stored(2, out + kSide * kScoreStride, kScoreBytes);
        _tile_stored(3, out + kSide * kScoreStride + kSide, kScoreBytes);
      }
    }
  }

  /// Weighted values of kTiles * 16 rows, 16 * kColumns of them from `column` on.
  template <int kTiles, int kColumns>
  static void multiply_values(const Range& range, int column, int first, int last, float* out) {
    const std::ptrdiff_t padded = range.value_tiles * kSide;
    const std::ptrdiff_t stride = padded * static_cast<std::ptrdiff_t>(sizeof(float));
    _tile_zero(0);
    if constexpr (kColumns == 2) _tile_zero(1);
    if constexpr (kTiles == 2) _tile_zero(2);
    if constexpr (kTiles == 2 && kColumns == 2) _tile_zero(3);
    for (int step = first; step < last; ++step) {
      const auto* const weights = reinterpret_cast<const std::byte*>(range.scores) + step * Tiles::kLine;
      const std::uint16_t* const values = range.value_step(step) + column / kSide * kTileElements;
      _tile_loadd(4, weights, kScoreBytes);
      _tile_loadd(6, values, Tiles::kLine);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kColumns == 2) {
        _tile_loadd(7, values + kTileElements, Tiles::kLine);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kTiles == 2) {
        _tile_loadd(5, weights + kSide * kScoreBytes, kScoreBytes);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (kColumns == 2) _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* const to = out + column;
    _tile_stored(0, to, stride);
    if constexpr (kColumns == 2) _tile_stored(1, to + kSide, stride);
    if constexpr (kTiles == 2) _tile_stored(2, to + kSide * padded, stride);
    if constexpr (kTiles == 2 && kColumns == 2) _tile_stored(3, to + kSide * padded + kSide, stride);
  }

  template <int kTiles>
  static void multiply_all_values(const Range& range, int first, int last, float* out) {
    const int columns = static_cast<int>(range.value_tiles) * kSide;
    int column = 0;
    for (; column + 2 * kSide <= columns; column += 2 * kSide) {
      multiply_values<kTiles, 2>(range, column, first, last, out);
    }
    if (column < columns) multiply_values<kTiles, 1>(range, column, first, last, out);
  }

  // ---- softmax ----

  /// 2^x for x < 127; relative error below 4e-6, a thousandth of bfloat16's; 0 below 2^-126. NaN stays NaN.
  static __m512 exp2(__m512 x) {
    const __m512 round = _mm512_set1_ps(12582912.0F);
    const __m512 shifted = _mm512_add_ps(x, round);
    const __m512 r = _mm512_sub_ps(x, _mm512_sub_ps(shifted, round));
    // Least largest relative error for |r| <= 1/2.
    __m512 y = _mm512_set1_ps(0.0095828531F);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.0559064246F));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.240240986F));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.693124193F));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0F));
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    const __mmask16 is_seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(is_seen, _mm512_castps_si512(y), exponent));
  }

  /// Scales of int8 keys and softcap, in place, keys of the steps first..last - 1.
  template <bool kIsInt8>
  static void reshape_scores(const AttentionShape& shape, const Range& range, int first, int last, float* row) {
    if (!kIsInt8 && shape.softcap <= 0.0F) return;
    const VecAvx512 cap = VecAvx512::set1(shape.softcap);
    for (int i = first * kStepKeys; i < last * kStepKeys; i += kSide) {
      VecAvx512 x = VecAvx512::load(row + i);
      if constexpr (kIsInt8) x = x * VecAvx512::load(range.key_scales + i);
      if (shape.softcap > 0.0F) x = cap * Float::tanh(x / cap);
      x.store(row + i);
    }
  }

  /// Keys lo..hi - 1 of a step that begins at `start`, a bit each.
  static std::uint32_t seen_keys(int start, int lo, int hi) {
    const int from = std::max(lo - start, 0);
    const int to = std::min(hi - start, kStepKeys);
    return (to >= kStepKeys ? ~0U : (1U << to) - 1) & (~0U << from);
  }

  /// What a row of a strip sees of the range, in keys from the range's start, and the steps in which they lie.
  struct Seen {
    int lo;
    int hi;
    int begin;
    int end;
  };

  static float find_max(const float* row, const Seen& keys) {
    __m512 best[2] = {_mm512_set1_ps(kMinusInfinity), _mm512_set1_ps(kMinusInfinity)};
    for_steps(keys, [&](int step, auto is_edge, std::uint32_t seen) __attribute__((always_inline)) {
      const float* const x = row + step * kStepKeys;
      best[0] = _mm512_max_ps(best[0], load_seen<is_edge>(x, seen));
      best[1] = _mm512_max_ps(best[1], load_seen<is_edge>(x + kSide, seen >> kSide));
    });
    return _mm512_reduce_max_ps(_mm512_max_ps(best[0], best[1]));
  }

  /// Scores of a row to weights in the steps first..last - 1, 0 where it does not see the key. Gives their sum.
  template <bool kIsInt8>
  static float soften(const Range& range, int first, int last, const Seen& keys, float max, float* row) {
    auto* const weights = reinterpret_cast<std::byte*>(row);  // of a step: before the scores of the next one
    const __m512 log2e = _mm512_set1_ps(1.44269504F);
    const __m512 shift = _mm512_set1_ps(max == kMinusInfinity ? 0.0F : max * -1.44269504F);
    __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for_steps(keys, [&](int step, auto is_edge, std::uint32_t seen) __attribute__((always_inline)) {
      const float* const x = row + step * kStepKeys;
      __m512 low = exp2(_mm512_fmadd_ps(load_seen<is_edge>(x, seen), log2e, shift));
      __m512 high = exp2(_mm512_fmadd_ps(load_seen<is_edge>(x + kSide, seen >> kSide), log2e, shift));
      total[0] = _mm512_add_ps(total[0], low);
      total[1] = _mm512_add_ps(total[1], high);
      if constexpr (kIsInt8) {
        low = _mm512_mul_ps(low, _mm512_loadu_ps(range.value_scales + step * kStepKeys));
        high = _mm512_mul_ps(high, _mm512_loadu_ps(range.value_scales + step * kStepKeys + kSide));
      }
      Tiles::store_row(low, high, weights + step * Tiles::kLine);
    });
    for (int step = first; step < keys.begin; ++step) zero_line(weights + step * Tiles::kLine);
    for (int step = keys.end; step < last; ++step) zero_line(weights + step * Tiles::kLine);
    return _mm512_reduce_add_ps(_mm512_add_ps(total[0], total[1]));
  }

  template <bool kIsEdge>
  static __m512 load_seen(const float* x, std::uint32_t seen) {
    if constexpr (!kIsEdge) return _mm512_loadu_ps(x);
    return _mm512_mask_loadu_ps(_mm512_set1_ps(kMinusInfinity), static_cast<__mmask16>(seen), x);
  }

  /// body(step, is_edge, seen) for each step, of which only the first and the last one may have keys that are not seen.
  template <typename Body>
  [[gnu::always_inline]] static inline void for_steps(const Seen& keys, const Body& body) {
    const auto seen = [&](int step) { return seen_keys(step * kStepKeys, keys.lo, keys.hi); };
    if (keys.begin >= keys.end) return;
    body(keys.begin, std::true_type(), seen(keys.begin));
    for (int step = keys.begin + 1; step < keys.end - 1; ++step) body(step, std::false_type(), ~0U);
    if (keys.begin + 1 < keys.end) body(keys.end - 1, std::true_type(), seen(keys.end - 1));
  }

  // ---- one range ----

  template <typename TC>
  static void attend_as(const AttentionShape& shape, const AttentionTensors& tensors, const TileRange& now,
                        const TileRange& next, const std::uint16_t* packed, float* memory, const Partial& out) {
    const QueryTile& tile = *now.tile;
    const RangeView<TC> view = view_range<TC>(shape, tensors, now, next);
    const Range range(shape, memory, view.first, view.last);
    load_range(shape, view, range);
    Tiles::configure();
    const std::int64_t start = std::int64_t{now.range} * kRangeKeys;
    const std::ptrdiff_t row_elements = shape.tiled_head_dim();
    for (int row = 0; row < tile.num_rows; row += kStripRows) {
      const int rows = std::min(kStripRows, tile.num_rows - row);
      QueryTile strip = tile;
      strip.first_row += row;
      strip.num_rows = rows;
      const Partial to{out.max + row, out.sum + row,
                       out.values + static_cast<std::ptrdiff_t>(row) * shape.padded_value_dim()};
      if (rows > kSide) {
        attend_strip<2, TC>(shape, strip, range, packed + row * row_elements, start, to);
      } else {
        attend_strip<1, TC>(shape, strip, range, packed + row * row_elements, start, to);
      }
    }
    Tiles::release();
  }

  template <int kTiles, typename TC>
  static void attend_strip(const AttentionShape& shape, const QueryTile& strip, const Range& range,
                           const std::uint16_t* queries, std::int64_t start, const Partial& out) {
    constexpr bool kIsInt8 = std::is_same_v<TC, std::int8_t>;
    const KeySpan seen = visible_keys(shape, strip);
    const auto clamp = [&](std::int64_t key) {
      return static_cast<int>(
          std::clamp<std::int64_t>(key - start, range.first_step * kStepKeys, range.last_step * kStepKeys));
    };
    const int first = clamp(seen.begin) / kStepKeys;
    const int last = (clamp(seen.end) + kStepKeys - 1) / kStepKeys;
    Tiles::barrier();
    multiply_keys<kTiles>(range, queries, first, last);
    Tiles::barrier();
    // What is below the strip's rows is not looked at. All maxima first: a row's weights would wait for its own.
    std::array<Seen, kStripRows> keys;
    for (int row = 0; row < strip.num_rows; ++row) {
      const KeySpan span = visible_keys(shape, strip, row);
      const int lo = clamp(span.begin);
      const int hi = std::max(lo, clamp(span.end));
      keys[static_cast<std::size_t>(row)] = {lo, hi, lo < hi ? lo / kStepKeys : last,
                                             lo < hi ? (hi + kStepKeys - 1) / kStepKeys : last};
      float* const scores = range.scores + row * kScoreStride;
      reshape_scores<kIsInt8>(shape, range, first, last, scores);
      out.max[row] = find_max(scores, keys[static_cast<std::size_t>(row)]);
    }
    for (int row = 0; row < strip.num_rows; ++row) {
      out.sum[row] = soften<kIsInt8>(range, first, last, keys[static_cast<std::size_t>(row)], out.max[row],
                                     range.scores + row * kScoreStride);
    }
    Tiles::barrier();
    multiply_all_values<kTiles>(range, first, last, out.values);
    Tiles::barrier();
  }

  static void attend(const AttentionShape& shape, const AttentionTensors& tensors, const TileRange& now,
                     const TileRange& next, const float* packed, float* scores, const Partial& out) {
    const auto* const queries = reinterpret_cast<const std::uint16_t*>(packed);
    switch (shape.kv) {
      case ElementKind::kFloat32:
        return attend_as<float>(shape, tensors, now, next, queries, scores, out);
      case ElementKind::kFloat16:
        return attend_as<Half>(shape, tensors, now, next, queries, scores, out);
      case ElementKind::kBFloat16:
        return attend_as<BHalf>(shape, tensors, now, next, queries, scores, out);
      case ElementKind::kInt8:
        return attend_as<std::int8_t>(shape, tensors, now, next, queries, scores, out);
    }
  }

  static AttentionKernels table() {
    AttentionKernels kernels = kAttentionAvx512;  // which is there before any code runs
    kernels.pack_queries = &pack_queries;
    kernels.attend = &attend;
    return kernels;
  }
};

}  // namespace

const AttentionKernels kAttentionAmx = PromptAttention::table();

}  // namespace genai::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
