#pragma once

// Attention of rows of prompts with operands of bfloat16, written once over the product of tiles. Included by
// attention_<isa>.cc after the pragma of the instruction set; all names are local to the file that includes it.

#include "genai/kernels/attention.h"
#include "genai/kernels/attention_impl.h"
#include "genai/kernels/join_avx512.h"
#include "genai/kernels/tiles_bf16.h"
#include "genai/kernels/vec_avx512.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace genai::kernels {
namespace {

/// Rows that are computed together, and keys of a step: the depth of a tile of values.
constexpr int kStripRows = 2 * Bf16Tiles::kSide;
constexpr int kStepKeys = Bf16Tiles::kDepth;
constexpr int kRangeSteps = kRangeKeys / kStepKeys;
constexpr std::ptrdiff_t kScoreBytes = kScoreStride * 4;  ///< from a row of scores to the next

static_assert(kGroupKeys == Bf16Tiles::kSide && kPromptRowStep == Bf16Tiles::kSide);

/// Working memory of a range, in the memory of scores.
struct PromptRange {
  std::uint16_t* keys;    ///< [groups][head_dim / 32][16 pairs of dimensions][16 keys][2]
  std::uint16_t* values;  ///< [steps][value_dim / 16][16 pairs of keys][16 columns][2]
  float* scores;          ///< [32][kScoreStride]; a row's weights, as bfloat16, take the place of its scores
  float* key_scales;      ///< [keys], int8 only
  float* value_scales;
  int head_dim;
  std::ptrdiff_t key_tiles;    ///< of a group
  std::ptrdiff_t value_tiles;  ///< of a step
  int first_step;
  int last_step;

  PromptRange(const AttentionShape& shape, float* memory, int first_group, int last_group)
      : head_dim(shape.head_dim),
        key_tiles(shape.tiled_head_dim() / Bf16Tiles::kDepth),
        value_tiles(shape.value_dim / Bf16Tiles::kSide),
        first_step(first_group / 2),
        last_step((last_group + 1) / 2) {
    keys = reinterpret_cast<std::uint16_t*>(memory);
    values = keys + kGroups * key_tiles * Bf16Tiles::kElements;
    scores = reinterpret_cast<float*>(values + kRangeSteps * value_tiles * Bf16Tiles::kElements);
    key_scales = scores + kStripRows * kScoreStride;
    value_scales = key_scales + kRangeKeys;
  }

  std::uint16_t* key_group(int group) const { return keys + group * key_tiles * Bf16Tiles::kElements; }
  std::uint16_t* value_step(int step) const { return values + step * value_tiles * Bf16Tiles::kElements; }
};

/// Attention of rows of prompts: both products take bfloat16 operands in tiles, sums and softmax are float32.
///
/// Rows are computed in strips of up to 32. For a strip, scores of the keys of a range that some of its rows see are
/// made, softened to weights row by row, and multiplied with the values. What a row does not see has weight 0, and the
/// product of tiles adds it like nothing: the row has the same bits in any strip.
///
/// Products: begin() and end() enclose the products of a range.
///   multiply_keys(range, queries, rows, first, end): scores of rows of queries with the keys from step `first` to key
///     end - 1, or to the end of its step
///   multiply_values(range, rows, first, end, out): the rows' weights times the values of those keys
/// Each sum adds its terms in the order of depth. Rows beyond the last one may be computed up to whole tiles.
template <typename Products>
struct PromptAttention {
  using Float = Attention<VecAvx512>;

  using Range = PromptRange;

  static constexpr int kSide = Bf16Tiles::kSide;

  // ---- queries ----

  /// Rows of queries that are fetched before they are needed: heads lie apart.
  static constexpr int kAheadRows = 12;

  static void prefetch(const void* from, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += Bf16Tiles::kLine)
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
      std::uint16_t* to = packed + row / kSide * kSide * depth + row % kSide * Bf16Tiles::kDepth;
      if (row >= tile.num_rows) {
        for (std::ptrdiff_t d = 0; d < depth; d += Bf16Tiles::kDepth, to += Bf16Tiles::kElements) {
          _mm512_storeu_si512(to, _mm512_setzero_si512());
        }
        continue;
      }
      if (row + kAheadRows < tile.num_rows) {
        prefetch(query_row<T>(shape, tensors, tile, row + kAheadRows), shape.head_dim * sizeof(T));
      }
      Float::prepare_row(shape, tensors, query_row<T>(shape, tensors, tile, row), tensors.query_norm,
                         tile.past + (tile.first_row + row) / shape.group(), scratch, scratch + shape.head_dim);
      for (int d = 0; d < shape.head_dim; d += Bf16Tiles::kDepth, to += Bf16Tiles::kElements) {
        const __m512 low = _mm512_mul_ps(_mm512_loadu_ps(scratch + d), scale);
        const __m512 high = d + kSide < shape.head_dim ? _mm512_mul_ps(_mm512_loadu_ps(scratch + d + kSide), scale)
                                                       : _mm512_setzero_ps();
        Bf16Tiles::store_row(low, high, to);
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
      Bf16Tiles::store_pairs(VecAvx512::load(keys + d * stride).v, VecAvx512::load(keys + (d + 1) * stride).v, to);
    }
    if (d % Bf16Tiles::kDepth != 0) zero(to, kSide / 2);
  }

  /// 16 keys' values, of which `count` are there, to half of the tiles of a step.
  template <typename TC>
  static void load_values(const TC* values, const TC* ahead, int value_dim, int count, std::uint16_t* to) {
    for (int i = 0; i < kGroupKeys; i += 2, to += 2 * kSide) {
      const TC* const row = values + static_cast<std::ptrdiff_t>(i) * value_dim;
      prefetch(ahead + static_cast<std::ptrdiff_t>(i) * value_dim,
               2 * sizeof(TC) * static_cast<std::size_t>(value_dim));
      std::uint16_t* tile = to;
      for (int column = 0; column < value_dim; column += kSide, tile += Bf16Tiles::kElements) {
        const __m512 even = i < count ? VecAvx512::load(row + column).v : _mm512_setzero_ps();
        const __m512 odd = i + 1 < count ? VecAvx512::load(row + value_dim + column).v : _mm512_setzero_ps();
        Bf16Tiles::store_pairs(even, odd, tile);
      }
    }
  }

  /// Values of keys that are not there are 0, as they meet weights of 0.
  template <typename TC>
  static void load_range(const AttentionShape& shape, const RangeView<TC>& view, const Range& range) {
    for (int group = 2 * range.first_step; group < 2 * range.last_step; ++group) {
      std::uint16_t* const keys = range.key_group(group);
      std::uint16_t* const values = range.value_step(group / 2) + group % 2 * Bf16Tiles::kElements / 2;
      const bool is_there = group >= view.first && group < view.last;
      const int count = is_there ? std::min(kGroupKeys, view.end - group * kGroupKeys) : 0;
      if (is_there) {
        const int next = std::min(group + 1, view.last - 1);
        load_keys(view.keys[group], view.keys[next], view.key_stride, shape.head_dim, keys);
        load_values(view.values[group], view.values[next], shape.value_dim, count, values);
      } else {
        zero(keys, range.key_tiles * kSide);
        for (std::ptrdiff_t t = 0; t < range.value_tiles; ++t) zero(values + t * Bf16Tiles::kElements, kSide / 2);
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

  /// The maximum of the row is that of the result's lanes.
  static __m512 find_max(const float* row, const Seen& keys) {
    __m512 best[2] = {_mm512_set1_ps(kMinusInfinity), _mm512_set1_ps(kMinusInfinity)};
    for_steps(keys, [&](int step, auto is_edge, std::uint32_t seen) __attribute__((always_inline)) {
      const float* const x = row + step * kStepKeys;
      best[0] = _mm512_max_ps(best[0], load_seen<is_edge>(x, seen));
      best[1] = _mm512_max_ps(best[1], load_seen<is_edge>(x + kSide, seen >> kSide));
    });
    return _mm512_max_ps(best[0], best[1]);
  }

  /// Scores of a row to weights in the steps first..last - 1, 0 where it does not see the key. Their sum is that
  /// of the result's lanes.
  template <bool kIsInt8>
  static __m512 soften(const Range& range, int first, int last, const Seen& keys, float max, float* row) {
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
      Bf16Tiles::store_row(low, high, weights + step * Bf16Tiles::kLine);
    });
    for (int step = first; step < keys.begin; ++step) zero_line(weights + step * Bf16Tiles::kLine);
    for (int step = keys.end; step < last; ++step) zero_line(weights + step * Bf16Tiles::kLine);
    return _mm512_add_ps(total[0], total[1]);
  }

  static __m512 larger(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
  static __m512 sum(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }

  template <auto kJoin>
  static void join_rows(const float (&lanes)[2][kSide][kSide], int rows, float* out) {
    for (int row = 0; row < rows; row += kSide) {
      const auto there = static_cast<__mmask16>(rows - row >= kSide ? ~0U : (1U << (rows - row)) - 1);
      __m512 x[kSide];
#pragma GCC unroll 16
      for (int r = 0; r < kSide; ++r) x[r] = _mm512_load_ps(lanes[row / kSide][r]);
      _mm512_mask_storeu_ps(out + row, there, join_lanes<kJoin>(x));
    }
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
    Products::begin();
    const std::int64_t start = std::int64_t{now.range} * kRangeKeys;
    const std::ptrdiff_t row_elements = shape.tiled_head_dim();
    for (int row = 0; row < tile.num_rows; row += kStripRows) {
      const int rows = std::min(kStripRows, tile.num_rows - row);
      QueryTile strip = tile;
      strip.first_row += row;
      strip.num_rows = rows;
      const Partial to{out.max + row, out.sum + row,
                       out.values + static_cast<std::ptrdiff_t>(row) * shape.padded_value_dim()};
      attend_strip<TC>(shape, strip, range, packed + row * row_elements, start, to);
    }
    Products::end();
  }

  template <typename TC>
  static void attend_strip(const AttentionShape& shape, const QueryTile& strip, const Range& range,
                           const std::uint16_t* queries, std::int64_t start, const Partial& out) {
    constexpr bool kIsInt8 = std::is_same_v<TC, std::int8_t>;
    const KeySpan seen = visible_keys(shape, strip);
    const auto clamp = [&](std::int64_t key) {
      return static_cast<int>(
          std::clamp<std::int64_t>(key - start, range.first_step * kStepKeys, range.last_step * kStepKeys));
    };
    const int end = clamp(seen.end);
    const int first = clamp(seen.begin) / kStepKeys;
    const int last = (end + kStepKeys - 1) / kStepKeys;
    Products::multiply_keys(range, queries, strip.num_rows, first, end);
    // What is below the strip's rows is not looked at. All maxima first: a row's weights would wait for its own.
    std::array<Seen, kStripRows> keys;
    alignas(64) float lanes[2][kSide][kSide];
    const int group = shape.group();
    int of_token = static_cast<int>(strip.first_row % group);
    for (int row = 0; row < strip.num_rows; ++row, ++of_token) {
      Seen& sees = keys[static_cast<std::size_t>(row)];
      if (row == 0 || of_token == group) {
        const KeySpan span = visible_keys(shape, strip, row);
        const int lo = clamp(span.begin);
        const int hi = std::max(lo, clamp(span.end));
        sees = {lo, hi, lo < hi ? lo / kStepKeys : last, lo < hi ? (hi + kStepKeys - 1) / kStepKeys : last};
        if (row > 0) of_token = 0;
      } else {
        sees = keys[static_cast<std::size_t>(row - 1)];
      }
      float* const scores = range.scores + row * kScoreStride;
      reshape_scores<kIsInt8>(shape, range, first, last, scores);
      _mm512_store_ps(lanes[row / kSide][row % kSide], find_max(scores, sees));
    }
    join_rows<larger>(lanes, strip.num_rows, out.max);
    for (int row = 0; row < strip.num_rows; ++row) {
      const __m512 sums = soften<kIsInt8>(range, first, last, keys[static_cast<std::size_t>(row)], out.max[row],
                                          range.scores + row * kScoreStride);
      _mm512_store_ps(lanes[row / kSide][row % kSide], sums);
    }
    join_rows<sum>(lanes, strip.num_rows, out.sum);
    Products::multiply_values(range, strip.num_rows, first, end, out.values);
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

  static constexpr PromptKernels kTable = {&pack_queries, &attend};
};

}  // namespace
}  // namespace genai::kernels
