#pragma once

// Where the keys and values of a range lie, and what is fetched while they are computed. Included by attention_impl.h,
// and compiled with it for each instruction set.

#include "genai/kernels/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace genai::kernels {
namespace {

constexpr int kGroups = kRangeKeys / kGroupKeys;

/// Groups of a step: first keys, then values are computed in steps, and a tile of few rows, which waits for memory,
/// fetches meanwhile what the next step reads. Blocks lie anywhere, so each group is a stream of its own, and several
/// of them side by side arrive faster than one after the other.
constexpr int kStep = 4;

/// Groups first..last - 1 of a range.
struct Step {
  int first;
  int last;
};

/// Keys or values of a group to be fetched, 16 of them at a time, `stride` apart.
template <typename TC>
struct Fetch {
  const TC* from = nullptr;
  std::ptrdiff_t stride = 0;
};

/// Where the keys and values of a range lie; groups first..last - 1 are used.
template <typename TC>
struct RangeView {
  int first = 0;
  int last = 0;
  int end = 0;  ///< keys of the range that count
  std::ptrdiff_t key_stride = 0;
  const TC* keys[kGroups];
  const TC* values[kGroups];
  const float* key_scales[kGroups];
  const float* value_scales[kGroups];
  /// Keys, values, and the first keys of what is computed next, in the order in which they are met.
  Fetch<TC> met[2 * kGroups + kStep];

  /// What is fetched while the keys of a group are met, and while its values are: what comes kStep groups later.
  const Fetch<TC>& after_keys(int group) const { return met[group - first + kStep]; }
  const Fetch<TC>& after_values(int group) const { return met[last - first + group - first + kStep]; }
  const Fetch<TC>& next_keys(int index) const { return met[2 * (last - first) + index]; }
};

/// Calls body(group, number of its block of the tile's head, key's place in the block) for groups first..last - 1 of
/// the range.
template <typename Body>
void for_groups(const AttentionShape& shape, const TileRange& at, int first, int last, const Body& body) {
  const std::int64_t start = std::int64_t{at.range} * kRangeKeys + first * kGroupKeys;
  std::int64_t column = start / shape.block_size;
  std::int64_t offset = start % shape.block_size;
  for (int g = first; g < last; ++g) {
    body(g, std::int64_t{at.tile->blocks[column]} * shape.kv_heads + at.tile->kv_head, offset);
    offset += kGroupKeys;
    if (offset == shape.block_size) {
      offset = 0;
      ++column;
    }
  }
}

/// What rows of the tile see of the range.
struct KeysOfRange {
  int end;  ///< from the range's start
  int first_group;
  int last_group;
};
KeysOfRange keys_of(const AttentionShape& shape, const TileRange& at) {
  const KeySpan seen = visible_keys(shape, *at.tile);
  const std::int64_t start = std::int64_t{at.range} * kRangeKeys;
  const int end = static_cast<int>(std::clamp<std::int64_t>(seen.end - start, 0, kRangeKeys));
  const int last = (end + kGroupKeys - 1) / kGroupKeys;
  const int begin = static_cast<int>(std::clamp<std::int64_t>(seen.begin - start, 0, kRangeKeys));
  return {end, std::min(last, begin / kGroupKeys), last};
}

/// The `c`-th of the kColumns streams of 16 keys or values that are met after those of `group` and its neighbours.
template <int kColumns, typename TC>
Fetch<TC> near_keys(const RangeView<TC>& view, int group, int half_dim, int c) {
  const int then = group + kColumns + c;
  if (then < view.last) return {view.keys[then], view.key_stride};
  // The values of a group are two streams.
  return {view.values[std::min(view.first + c / 2, view.last - 1)] + c % 2 * half_dim * kGroupKeys, kGroupKeys};
}

/// Of the values that are weighed after those of `group` from `column` on, kColumns * 16 of a row: 16 of them from
/// c * 16 on.
template <int kColumns, typename TC>
Fetch<TC> near_values(const RangeView<TC>& view, Step step, int group, int value_dim, int column, int c) {
  const int behind = column + kColumns * kGroupKeys;
  if (group + 1 < step.last) return {view.values[group + 1] + column + c * kGroupKeys, value_dim};
  if (behind < value_dim) return {view.values[step.first] + behind + c * kGroupKeys, value_dim};
  if (step.last < view.last) return {view.values[step.last] + c * kGroupKeys, value_dim};
  return view.next_keys(c);
}

/// next: what is computed after it.
template <typename TC>
RangeView<TC> view_range(const AttentionShape& shape, const AttentionTensors& tensors, const TileRange& now,
                         const TileRange& next) {
  RangeView<TC> view;
  const auto keys_at = [&](std::int64_t block_head, std::int64_t offset) {
    return reinterpret_cast<const TC*>(tensors.key_cache) + block_head * shape.head_dim * shape.block_size + offset;
  };
  const KeysOfRange keys = keys_of(shape, now);
  view.first = keys.first_group;
  view.last = keys.last_group;
  view.end = keys.end;
  view.key_stride = shape.block_size;
  const int count = view.last - view.first;
  for_groups(shape, now, view.first, view.last, [&](int g, std::int64_t block_head, std::int64_t offset) {
    const std::int64_t slot = block_head * shape.block_size + offset;
    view.keys[g] = keys_at(block_head, offset);
    view.values[g] = reinterpret_cast<const TC*>(tensors.value_cache) + slot * shape.value_dim;
    view.met[g - view.first] = {view.keys[g], view.key_stride};
    view.met[count + g - view.first] = {view.values[g], kGroupKeys};
    if constexpr (std::is_same_v<TC, std::int8_t>) {
      view.key_scales[g] = tensors.key_scale + slot;
      view.value_scales[g] = tensors.value_scale + slot;
    }
  });
  Fetch<TC>* const next_keys = view.met + 2 * count;
  std::fill(next_keys, next_keys + kStep, Fetch<TC>{view.keys[view.first]});  // which are in cache
  if (next.tile != nullptr) {
    const KeysOfRange ahead = keys_of(shape, next);
    const int last = std::min(ahead.first_group + kStep, ahead.last_group);
    for_groups(shape, next, ahead.first_group, last, [&](int g, std::int64_t block_head, std::int64_t offset) {
      next_keys[g - ahead.first_group] = {keys_at(block_head, offset), shape.block_size};
    });
  }
  return view;
}

}  // namespace
}  // namespace genai::kernels
