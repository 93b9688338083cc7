#pragma once

// The attention kernels, written once over a vector of 16 floats. Included by attention_<isa>.cc, each time compiled
// for that instruction set; all names are local to the file that includes it.

#include "genai/kernels/attention.h"
#include "genai/kernels/attention_rows.h"
#include "genai/kernels/attention_view.h"
#include "genai/kernels/vec_element.h"
#include "genai/kernels/vec_math.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace genai::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <typename V>
struct Attention : AttentionRows<V> {
  using Rows = AttentionRows<V>;
  using Rows::load_part;

  // ---- arithmetic ----

  static V exp(V x) { return exp_of(x); }

  static float exp1(float x) {
    float lanes[16];
    exp(V::set1(x)).store(lanes);
    return lanes[0];
  }

  /// tanh(x), absolute error below 2e-7. The order of operands lets NaN through.
  static V tanh(V x) {
    const V twice = V::max(V::set1(-40.0F), x + x);
    const V y = V::zero() - V::max(V::set1(-40.0F), V::zero() - twice);
    return V::set1(1.0F) - V::set1(2.0F) / (exp(y) + V::set1(1.0F));
  }

  // ---- register tiles: the rows of a tile cut into runs of at most V::kMaxRows ----

  static int num_runs(int rows) { return (rows + V::kMaxRows - 1) / V::kMaxRows; }
  /// First row of run `run` when `rows` are cut as evenly as possible.
  static int run_begin(int rows, int run) { return rows * run / num_runs(rows); }

  template <typename T>
  static void pack_queries_as(const AttentionShape& shape, const AttentionTensors& tensors, const QueryTile& tile,
                              float* packed, float* scratch) {
    const int group = shape.group();
    for (int run = 0; run < num_runs(tile.num_rows); ++run) {
      float* const out = packed + static_cast<std::ptrdiff_t>(run) * V::kMaxRows * shape.head_dim;
      const int begin = run_begin(tile.num_rows, run);
      for (int row = begin; row < run_begin(tile.num_rows, run + 1); ++row) {
        const std::int64_t token = (tile.first_row + row) / group;
        const std::int64_t head = tile.kv_head * group + (tile.first_row + row) % group;
        const T* const src = reinterpret_cast<const T*>(tensors.query) +
                             (tile.first_token + token) * tensors.query_stride + head * shape.head_dim;
        Rows::prepare_row(shape, tensors, src, tensors.query_norm, tile.past + token, scratch,
                          scratch + shape.head_dim);
        for (int d = 0; d < shape.head_dim; ++d) out[d * V::kMaxRows + row - begin] = scratch[d] * shape.scale;
      }
    }
  }

  static void pack_queries(const AttentionShape& shape, const AttentionTensors& tensors, const QueryTile& tile,
                           float* packed, float* scratch) {
    if (shape.io == ElementKind::kFloat16) return pack_queries_as<Half>(shape, tensors, tile, packed, scratch);
    pack_queries_as<float>(shape, tensors, tile, packed, scratch);
  }

  // ---- one range ----

  /// Whether a tile waits for the second-level cache as well, so that what it meets next is fetched into the first
  /// level: fewer rows wait for memory alone.
  template <int kRows>
  static constexpr bool kFetchesNear =
      kRows >= 4 && kRows <= kWaitingRows && requires(const void* p) { V::prefetch_near(p); };

  /// Vectors in a cache line.
  template <typename TC>
  static constexpr int kLine = 4 / static_cast<int>(sizeof(TC));

  /// Scores of kRows rows and kColumns groups of a step: an outer product for each dimension of the head.
  template <int kRows, int kColumns, typename TC>
  static void dot_tile(const float* packed, int head_dim, const RangeView<TC>& view, Step step, int group,
                       float* scores) {
    V sums[kRows][kColumns];
    const TC* keys[kColumns];
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      keys[c] = view.keys[group + c];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sums[r][c] = V::zero();
    }
    // All groups of the next step side by side, kColumns of them with each dimension.
    constexpr int kTurns = kStep / kColumns;
    Fetch<TC> ahead[kStep];
    if constexpr (kRows <= kWaitingRows) {
      for (int stream = 0; stream < kStep; ++stream) {
        ahead[stream] = view.after_keys(std::min(step.first + stream, step.last - 1));
        ahead[stream].from += (group - step.first) / kColumns * head_dim / kTurns * ahead[stream].stride;
      }
    }
    const auto meet = [&](int first, int last, const Fetch<TC>(&near)[kColumns]) __attribute__((always_inline)) {
      for (int d = first; d < last; ++d) {
        const std::ptrdiff_t at = d * view.key_stride;
        V key[kColumns];
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) {
          key[c] = V::load(keys[c] + at);
          if constexpr (kRows <= kWaitingRows) {
            const int turn = d / kTurns;
            const Fetch<TC>& fetch = ahead[d % kTurns * kColumns + c];
            if (turn % kLine<TC> == 0) V::prefetch(fetch.from + turn * fetch.stride);
          }
          if constexpr (kFetchesNear<kRows>) {
            if (d % kLine<TC> == 0) V::prefetch_near(near[c].from + (d - first) * near[c].stride);
          }
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const V query = V::set1(packed[d * V::kMaxRows + r]);
#pragma GCC unroll 16
          for (int c = 0; c < kColumns; ++c) sums[r][c] = V::fma(query, key[c], sums[r][c]);
        }
      }
    };
    // The first half of the dimensions fetches the second one, which fetches what is met next.
    const int half = kFetchesNear<kRows> ? head_dim / 2 : 0;
    Fetch<TC> near[kColumns];
    if constexpr (kFetchesNear<kRows>) {
      for (int c = 0; c < kColumns; ++c) near[c] = {keys[c] + half * view.key_stride, view.key_stride};
      meet(0, half, near);
      for (int c = 0; c < kColumns; ++c) near[c] = near_keys<kColumns>(view, group, half, c);
    }
    meet(half, head_dim, near);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sums[r][c].store(scores + r * kScoreStride + c * kGroupKeys);
    }
  }

  /// Scores of kRows rows for the groups of a step.
  template <int kRows, typename TC>
  static void dots(const float* packed, int head_dim, const RangeView<TC>& view, Step step, float* scores) {
    constexpr int kColumns = V::columns(kRows);
    int group = step.first;
    for (; group + kColumns <= step.last; group += kColumns) {
      dot_tile<kRows, kColumns>(packed, head_dim, view, step, group, scores + group * kGroupKeys);
    }
    for (; group < step.last; ++group) {
      dot_tile<kRows, 1>(packed, head_dim, view, step, group, scores + group * kGroupKeys);
    }
  }

  /// Adds the weighted values of a step's groups to what those before them gave; kRows rows, kColumns * 16 values
  /// from `column` on. Vectors kFetchFrom..kFetchTo - 1 fetch.
  template <int kRows, int kColumns, bool kPart, int kFetchFrom = 0, int kFetchTo = kColumns, typename TC>
  static void weigh_tile(const float* weights, const RangeView<TC>& view, Step step, int value_dim, int column,
                         float* out) {
    // Weights are operands in memory where sums and a row of values take all 32 registers.
    constexpr bool kFillsRegisters = (kRows + 1) * kColumns == 32;
    const std::ptrdiff_t padded = (value_dim + 15) / 16 * 16;
    V sums[kRows][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) {
        sums[r][c] = step.first == view.first ? V::zero() : V::load(out + r * padded + column + c * 16);
      }
    }
    for (int group = step.first; group < step.last; ++group) {
      const TC* const values = view.values[group] + column;
      const float* const weight = weights + group * kGroupKeys;
      const int count = std::min(kGroupKeys, view.end - group * kGroupKeys);
      Fetch<TC> ahead[kColumns];
      if constexpr (kRows <= kWaitingRows) {
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) ahead[c] = fetch_of(view, step, group, column / 16 + c);
      }
      Fetch<TC> near[kColumns];
      if constexpr (kFetchesNear<kRows>) {
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) near[c] = near_values<kColumns>(view, step, group, value_dim, column, c);
      }
      for (int i = 0; i < count; ++i) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(i) * value_dim;
        V value[kColumns];
        const auto load = [&](int c) __attribute__((always_inline)) {
          value[c] = kPart ? load_part(values + at, value_dim - column) : V::load(values + at + c * 16);
          if constexpr (kRows <= kWaitingRows) {
            if (c >= kFetchFrom && c < kFetchTo && i % kLine<TC> == 0) V::prefetch(ahead[c].from + i * ahead[c].stride);
          }
          if constexpr (kFetchesNear<kRows>) {
            if (c % kLine<TC> == 0) V::prefetch_near(near[c].from + i * near[c].stride);
          }
        };
        if constexpr (kFillsRegisters) {
#pragma GCC unroll 16
          for (int c = 0; c < kColumns; ++c) {
            load(c);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
              sums[r][c] = V::fma(V::set1(weight[r * kScoreStride + i]), value[c], sums[r][c]);
            }
            asm volatile("" ::: "memory");  // else the compiler keeps weights, and has no registers for them
          }
        } else {
#pragma GCC unroll 16
          for (int c = 0; c < kColumns; ++c) load(c);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const V w = V::set1(weight[r * kScoreStride + i]);
#pragma GCC unroll 16
            for (int c = 0; c < kColumns; ++c) sums[r][c] = V::fma(w, value[c], sums[r][c]);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sums[r][c].store(out + r * padded + column + c * 16);
    }
  }

  /// What the 16 keys of a group fetch of the next step with vector `column` of their values: neighbours fetch from
  /// different groups.
  template <typename TC>
  static Fetch<TC> fetch_of(const RangeView<TC>& view, Step step, int group, int column) {
    Fetch<TC> fetch = view.after_values(std::min(step.first + column % kStep, step.last - 1));
    fetch.from += (column / kStep * kStep + group - step.first) * kGroupKeys * fetch.stride;
    return fetch;
  }

  template <int kRows, typename TC>
  static void weigh(const float* weights, const RangeView<TC>& view, int value_dim, float* out) {
    constexpr int kColumns = V::columns(kRows);
    // Rows of values arrive faster when all of a row is read at once. So a tile whose sums leave no room for that is
    // computed in halves: the second one has its values in the first-level cache, and each fetches half. 7 rows leave
    // room if nothing but sums and values is in registers, which is worth it if values are in the first level.
    constexpr int kHalf = (kRows + 1) / 2;
    constexpr int kWide = V::columns(kHalf);
    constexpr bool kIsWide = kRows <= kWaitingRows && kColumns < kStep && kWide == kStep;
    constexpr bool kAtOnce = kFetchesNear<kRows> && (kRows + 1) * kWide <= 32;
    Step step{view.first, view.first};
    do {
      step = {step.last, kRows <= kWaitingRows ? std::min(step.last + kStep, view.last) : view.last};
      int column = 0;
      if constexpr (kIsWide && kAtOnce) {
        for (; column + kWide * 16 <= value_dim; column += kWide * 16) {
          weigh_tile<kRows, kWide, false>(weights, view, step, value_dim, column, out);
        }
      } else if constexpr (kIsWide) {
        const std::ptrdiff_t padded = (value_dim + 15) / 16 * 16;
        for (; column + kWide * 16 <= value_dim; column += kWide * 16) {
          weigh_tile<kHalf, kWide, false, 0, kWide / 2>(weights, view, step, value_dim, column, out);
          weigh_tile<kRows - kHalf, kWide, false, kWide / 2>(weights + kHalf * kScoreStride, view, step, value_dim,
                                                             column, out + kHalf * padded);
        }
      }
      for (; column + kColumns * 16 <= value_dim; column += kColumns * 16) {
        weigh_tile<kRows, kColumns, false>(weights, view, step, value_dim, column, out);
      }
      for (; column + 16 <= value_dim; column += 16) {
        weigh_tile<kRows, 1, false>(weights, view, step, value_dim, column, out);
      }
      if (column < value_dim) weigh_tile<kRows, 1, true>(weights, view, step, value_dim, column, out);
    } while (step.last < view.last);
  }

  /// The two steps for a number of rows that is known at run time: entry n - 1 is for n rows.
  template <typename TC>
  struct RowSteps {
    void (*dots)(const float*, int, const RangeView<TC>&, Step, float*);
    void (*weigh)(const float*, const RangeView<TC>&, int, float*);
  };
  template <typename TC, std::size_t... kIndex>
  static constexpr std::array<RowSteps<TC>, sizeof...(kIndex)> make_steps(std::index_sequence<kIndex...>) {
    return {RowSteps<TC>{&dots<static_cast<int>(kIndex) + 1, TC>, &weigh<static_cast<int>(kIndex) + 1, TC>}...};
  }
  template <typename TC>
  static constexpr std::array<RowSteps<TC>, V::kMaxRows> kSteps =
      make_steps<TC>(std::make_index_sequence<V::kMaxRows>());

  /// Scores of one row to weights, in place; keys outside lo..hi - 1 get weight 0.
  template <typename TC>
  static void soften(const AttentionShape& shape, const RangeView<TC>& view, int lo, int hi, float* row, float* max,
                     float* sum) {
    constexpr bool kIsInt8 = std::is_same_v<TC, std::int8_t>;
    if (kIsInt8 || shape.softcap > 0.0F) {
      for (int g = view.first; g < view.last; ++g) {
        V x = V::load(row + g * kGroupKeys);
        if constexpr (kIsInt8) x = x * V::load(view.key_scales[g]);
        if (shape.softcap > 0.0F) x = V::set1(shape.softcap) * tanh(x / V::set1(shape.softcap));
        x.store(row + g * kGroupKeys);
      }
    }
    for (int i = view.first * kGroupKeys; i < lo; ++i) row[i] = kMinusInfinity;
    for (int i = hi; i < view.last * kGroupKeys; ++i) row[i] = kMinusInfinity;
    V best = V::set1(kMinusInfinity);
    for (int g = view.first; g < view.last; ++g) best = V::max(best, V::load(row + g * kGroupKeys));
    *max = best.largest();
    const V shift = V::set1(*max == kMinusInfinity ? 0.0F : *max);
    V total = V::zero();
    for (int g = view.first; g < view.last; ++g) {
      V weight = exp(V::load(row + g * kGroupKeys) - shift);
      total = total + weight;
      if constexpr (kIsInt8) weight = weight * V::load(view.value_scales[g]);
      weight.store(row + g * kGroupKeys);
    }
    *sum = total.sum();
  }

  template <typename TC>
  static void attend_as(const AttentionShape& shape, const AttentionTensors& tensors, const TileRange& now,
                        const TileRange& next, const float* packed, float* scores, const Partial& out) {
    const QueryTile& tile = *now.tile;
    const RangeView<TC> view = view_range<TC>(shape, tensors, now, next);
    const int runs = num_runs(tile.num_rows);
    for (int group = view.first; group < view.last; group += kStep) {
      for (int run = 0; run < runs; ++run) {
        const int begin = run_begin(tile.num_rows, run);
        const int rows = run_begin(tile.num_rows, run + 1) - begin;
        kSteps<TC>[static_cast<std::size_t>(rows - 1)].dots(
            packed + static_cast<std::ptrdiff_t>(run) * V::kMaxRows * shape.head_dim, shape.head_dim, view,
            {group, std::min(group + kStep, view.last)}, scores + begin * kScoreStride);
      }
    }
    const std::int64_t start = std::int64_t{now.range} * kRangeKeys;
    const std::int64_t first = view.first * kGroupKeys;
    for (int row = 0; row < tile.num_rows; ++row) {
      const KeySpan seen = visible_keys(shape, tile, row);
      const auto lo = std::clamp<std::int64_t>(seen.begin - start, first, view.end);
      const auto hi = std::clamp<std::int64_t>(seen.end - start, lo, view.end);
      soften(shape, view, static_cast<int>(lo), static_cast<int>(hi), scores + row * kScoreStride, out.max + row,
             out.sum + row);
    }
    for (int run = 0; run < runs; ++run) {
      const int begin = run_begin(tile.num_rows, run);
      const int rows = run_begin(tile.num_rows, run + 1) - begin;
      kSteps<TC>[static_cast<std::size_t>(rows - 1)].weigh(
          scores + begin * kScoreStride, view, shape.value_dim,
          out.values + static_cast<std::ptrdiff_t>(begin) * shape.padded_value_dim());
    }
  }

  static void attend(const AttentionShape& shape, const AttentionTensors& tensors, const TileRange& now,
                     const TileRange& next, const float* packed, float* scores, const Partial& out) {
    switch (shape.kv) {
      case ElementKind::kFloat32:
        return attend_as<float>(shape, tensors, now, next, packed, scores, out);
      case ElementKind::kFloat16:
        return attend_as<Half>(shape, tensors, now, next, packed, scores, out);
      case ElementKind::kBFloat16:
        return attend_as<BHalf>(shape, tensors, now, next, packed, scores, out);
      case ElementKind::kInt8:
        return attend_as<std::int8_t>(shape, tensors, now, next, packed, scores, out);
    }
  }

  // ---- joining and writing ----

  /// Merges maxima and sums of up to 16 rows, and gives the factors of their values.
  static void merge_sums(int first, int count, const Partial& next, const Partial& total, float* keeps, float* takes) {
    const V max_total = load_part(total.max + first, count);
    const V max_next = load_part(next.max + first, count);
    const V max = V::max(max_total, max_next);
    const V shift = V::max(V::set1(std::numeric_limits<float>::lowest()), max);
    const V keep = exp(max_total - shift);
    const V take = exp(max_next - shift);
    const V sum = V::fma(load_part(next.sum + first, count), take, load_part(total.sum + first, count) * keep);
    keep.store(keeps);
    take.store(takes);
    float lanes[16];
    max.store(lanes);
    std::copy(lanes, lanes + count, total.max + first);
    sum.store(lanes);
    std::copy(lanes, lanes + count, total.sum + first);
  }

  /// A range that a row does not see changes nothing: its factor is 0 and the other one 1, exactly.
  static void merge(const AttentionShape& shape, int rows, const Partial& next, const Partial& total) {
    const int padded = shape.padded_value_dim();
    for (int first = 0; first < rows; first += 16) {
      const int count = std::min(16, rows - first);
      float keeps[16];
      float takes[16];
      merge_sums(first, count, next, total, keeps, takes);
      for (int r = 0; r < count; ++r) {
        const V keep = V::set1(keeps[r]);
        const V take = V::set1(takes[r]);
        float* const sums = total.values + static_cast<std::ptrdiff_t>(first + r) * padded;
        const float* const more = next.values + static_cast<std::ptrdiff_t>(first + r) * padded;
        for (int i = 0; i < padded; i += 16) V::fma(V::load(more + i), take, V::load(sums + i) * keep).store(sums + i);
      }
    }
  }

  template <typename T>
  static void finish_as(const AttentionShape& shape, const AttentionTensors& tensors, const QueryTile& tile,
                        const Partial& total, float* scratch) {
    const int group = shape.group();
    const int padded = shape.padded_value_dim();
    for (int r = 0; r < tile.num_rows; ++r) {
      const std::int64_t token = tile.first_token + (tile.first_row + r) / group;
      const std::int64_t head = tile.kv_head * group + (tile.first_row + r) % group;
      float factor = 1.0F;
      float sum = total.sum[r];
      if (tensors.head_sink != nullptr || shape.smooth_softmax) {
        const float sink =
            tensors.head_sink == nullptr ? 0.0F : to_float(reinterpret_cast<const T*>(tensors.head_sink)[head]);
        const float max = std::max(total.max[r], sink);
        const float shift = max == kMinusInfinity ? 0.0F : max;
        factor = exp1(total.max[r] - shift);
        sum = sum * factor + exp1(sink - shift);
      }
      const V scale = V::set1(sum == 0.0F ? 0.0F : factor / sum);
      const float* const sums = total.values + static_cast<std::ptrdiff_t>(r) * padded;
      for (int i = 0; i < padded; i += 16) (V::load(sums + i) * scale).store(scratch + i);
      Rows::store_row(scratch, shape.value_dim,
                      reinterpret_cast<T*>(tensors.output) + (token * shape.num_heads + head) * shape.value_dim);
    }
  }

  static void finish(const AttentionShape& shape, const AttentionTensors& tensors, const QueryTile& tile,
                     const Partial& total, float* scratch) {
    if (shape.io == ElementKind::kFloat16) return finish_as<Half>(shape, tensors, tile, total, scratch);
    finish_as<float>(shape, tensors, tile, total, scratch);
  }

  static constexpr AttentionKernels kTable{&Rows::write_token, &pack_queries, &attend, &merge, &finish};
};

}  // namespace
}  // namespace genai::kernels
