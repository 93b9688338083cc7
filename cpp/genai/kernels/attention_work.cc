#include "genai/kernels/attention_work.h"

#include <algorithm>

namespace genai::kernels {
namespace {

// Costs are multiply-adds, about 30 of them a nanosecond; bringing a key from memory costs as much as this many rows.
constexpr double kMemoryRows = 8;
/// Waking up other threads takes some microseconds: less work than this is done at once.
constexpr double kSmallCost = 600e3;
/// Smallest work of a piece that is cut off an item.
constexpr double kPieceCost = 300e3;
/// Pieces of each thread, so that none waits long for the last one.
constexpr double kPiecesPerThread = 4;
/// New tokens, times KV heads, that one thread writes in about 20 us.
constexpr std::int64_t kSmallWrites = 128;

std::size_t lines(std::size_t floats) {
  return (floats + 15) / 16;
}

double item_cost(const AttentionShape& shape, const AttentionItem& item) {
  const KeySpan seen = visible_keys(shape, item.tile);
  return static_cast<double>(seen.end - seen.begin) * (shape.head_dim + shape.value_dim) *
         (item.tile.num_rows + kMemoryRows);
}

}  // namespace

void AttentionWork::plan(const PagedCall& call, int num_threads) {
  shape_ = call.shape;
  plan_tokens(call);
  plan_items(call);
  plan_pieces(num_threads);
  const std::int64_t writes = call.num_tokens * shape_.kv_heads;
  write_threads_ = writes <= kSmallWrites ? 1 : num_threads;
  const std::size_t threads = static_cast<std::size_t>(std::max(attention_threads_, write_threads_));
  const std::size_t needed =
      threads * (lines(packed_floats(shape_)) + lines(kTileRows * kScoreStride) + lines(scratch_floats(shape_)) +
                 2 * lines(Partial::size_floats(kTileRows, shape_.padded_value_dim())));
  if (buffers_.size() < needed) buffers_.resize(needed);
}

void AttentionWork::plan_tokens(const PagedCall& call) {
  const std::int64_t block_size = shape_.block_size;
  tokens_.resize(static_cast<std::size_t>(call.num_tokens));
  for (std::size_t s = 0; s < call.past.size(); ++s) {
    const std::int32_t* const blocks = call.block_table + static_cast<std::int64_t>(s) * call.max_blocks;
    for (std::int64_t t = call.cumulative[s]; t < call.cumulative[s + 1]; ++t) {
      const std::int64_t position = call.past[s] + t - call.cumulative[s];
      const std::int64_t slot = call.slot_mapping != nullptr
                                    ? call.slot_mapping[t]
                                    : blocks[position / block_size] * block_size + position % block_size;
      tokens_[static_cast<std::size_t>(t)] = {position, slot};
    }
  }
}

void AttentionWork::plan_items(const PagedCall& call) {
  items_.clear();
  cost_ = 0;
  for (std::size_t s = 0; s < call.past.size(); ++s) {
    const std::int64_t count = call.cumulative[s + 1] - std::int64_t{call.cumulative[s]};
    if (count == 0) continue;
    const std::int64_t rows = count * shape_.group();
    const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    AttentionItem item;
    item.tile.blocks = call.block_table + static_cast<std::int64_t>(s) * call.max_blocks;
    item.tile.first_token = call.cumulative[s];
    item.tile.past = call.past[s];
    item.tile.total = call.past[s] + count;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      item.tile.kv_head = head;
      for (std::int64_t t = 0; t < tiles; ++t) {
        item.tile.first_row = rows * t / tiles;
        item.tile.num_rows = static_cast<int>(rows * (t + 1) / tiles - item.tile.first_row);
        const KeySpan seen = visible_keys(shape_, item.tile);
        item.first_range = static_cast<int>(seen.begin / kRangeKeys);
        item.num_ranges = static_cast<int>((seen.end + kRangeKeys - 1) / kRangeKeys) - item.first_range;
        items_.push_back(item);
        cost_ += item_cost(shape_, item);
      }
    }
  }
}

void AttentionWork::plan_pieces(int num_threads) {
  pieces_.clear();
  attention_threads_ = cost_ < kSmallCost ? 1 : num_threads;
  const double target =
      attention_threads_ == 1 ? cost_ : std::max(kPieceCost, cost_ / (kPiecesPerThread * attention_threads_));
  std::size_t partials = 0;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    AttentionItem& item = items_[i];
    const double wanted = item_cost(shape_, item) / target;
    const int pieces = std::clamp(static_cast<int>(wanted), 1, item.num_ranges);
    item.is_split = pieces > 1;
    item.open_pieces = pieces;
    if (item.is_split) {
      item.partials_at = partials;
      partials += 16 * lines(Partial::size_floats(item.tile.num_rows, shape_.padded_value_dim())) *
                  static_cast<std::size_t>(item.num_ranges);
    }
    for (int p = 0; p < pieces; ++p) {
      const int begin = item.num_ranges * p / pieces;
      pieces_.push_back({i, item.first_range + begin, item.num_ranges * (p + 1) / pieces - begin});
    }
  }
  attention_threads_ = std::min(attention_threads_, std::max(1, static_cast<int>(pieces_.size())));
  if (partials_.size() < lines(partials)) partials_.resize(lines(partials));
}

Partial AttentionWork::partial(const AttentionItem& item, int range) {
  const std::size_t each = lines(Partial::size_floats(item.tile.num_rows, shape_.padded_value_dim()));
  const std::size_t at = item.partials_at / 16 + each * static_cast<std::size_t>(range - item.first_range);
  return Partial::in(partials_[at].values, item.tile.num_rows);
}

AttentionWork::Buffers AttentionWork::buffers(int thread) {
  const std::size_t packed = lines(packed_floats(shape_));
  const std::size_t scores = lines(kTileRows * kScoreStride);
  const std::size_t scratch = lines(scratch_floats(shape_));
  const std::size_t partial = lines(Partial::size_floats(kTileRows, shape_.padded_value_dim()));
  const std::size_t each = packed + scores + scratch + 2 * partial;
  FloatLine* const start = buffers_.data() + each * static_cast<std::size_t>(thread);
  FloatLine* const total = start + packed + scores + scratch;
  return {start->values, (start + packed)->values, (start + packed + scores)->values,
          Partial::in(total->values, kTileRows), Partial::in((total + partial)->values, kTileRows)};
}

}  // namespace genai::kernels
