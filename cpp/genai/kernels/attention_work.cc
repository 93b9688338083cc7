#include "genai/kernels/attention_work.h"

#include "genai/kernels/parallel.h"

#include <algorithm>

namespace genai::kernels {
namespace {

// Costs are multiply-adds, about 30 of them a nanosecond; bringing a key from memory costs as much as this many rows.
constexpr double kMemoryRows = 8;
/// How many times faster rows of prompts are computed in tiles of bfloat16; twice in vectors.
constexpr double kPromptSpeed = 5;
/// Waking up other threads takes some microseconds: less work than this is done at once.
constexpr double kSmallCost = 600e3;
/// Smallest work of a piece that is cut off an item.
constexpr double kPieceCost = 300e3;
/// Pieces of each thread, so that none waits long for the last one: of tiles of many rows, whose partial results are
/// large, and of others.
constexpr double kTallPiecesPerThread = 4;
constexpr double kPiecesPerThread = 32;
/// New tokens, times KV heads, that one thread writes in about 20 us.
constexpr std::int64_t kSmallWrites = 128;

std::size_t lines(std::size_t floats) {
  return (floats + 15) / 16;
}

/// Ranges in which the keys lie.
std::int64_t count_ranges(const KeySpan& keys) {
  return (keys.end + kRangeKeys - 1) / kRangeKeys - keys.begin / kRangeKeys;
}

/// Of a tile's rows behind so many keys.
double tile_cost(const AttentionShape& shape, const QueryTile& tile, const KeySpan& keys) {
  const double rows = tile.is_prompt ? tile.num_rows / kPromptSpeed : tile.num_rows;
  return static_cast<double>(keys.end - keys.begin) * (shape.head_dim + shape.value_dim) * (rows + kMemoryRows);
}

double item_cost(const AttentionShape& shape, const AttentionItem& item) {
  return tile_cost(shape, item.tile, visible_keys(shape, item.tile));
}

/// Rows of a tile of prompts, as many as leave enough work for all threads: a tile's ranges can be computed apart, and
/// each tile reads all its keys and values.
int prompt_tile_rows(std::int64_t rows, std::int64_t ranges, int num_threads) {
  constexpr std::int64_t kStrip = 2 * kPromptRowStep;
  const std::int64_t pieces = static_cast<std::int64_t>(kTallPiecesPerThread) * num_threads;
  const std::int64_t even = rows * ranges / pieces / kStrip * kStrip;
  return static_cast<int>(std::clamp<std::int64_t>(even, 2 * kStrip, kPromptTileRows));
}

bool is_tall(const QueryTile& tile) {
  return tile.is_prompt || tile.num_rows > kWaitingRows;
}

/// Rows that a partial result has room for.
int partial_rows(const QueryTile& tile) {
  return tile.is_prompt ? (tile.num_rows + kPromptRowStep - 1) / kPromptRowStep * kPromptRowStep : tile.num_rows;
}

}  // namespace

void AttentionWork::plan(const PagedCall& call, int num_threads) {
  shape_ = call.shape;
  plan_tokens(call);
  plan_items(call, num_threads);
  threads_ = cost_ < kSmallCost && call.num_tokens * shape_.kv_heads <= kSmallWrites ? 1 : num_threads;
  plan_pieces();
  size_buffers();
}

void AttentionWork::size_buffers() {
  each_ = {lines(packed_floats(shape_)), lines(kTileRows * kScoreStride), lines(scratch_floats(shape_)),
           lines(Partial::size_floats(kTileRows, shape_.padded_value_dim()))};
  if (has_prompts_) {
    each_.packed = std::max(each_.packed, lines(prompt_packed_floats(shape_)));
    each_.scores = std::max(each_.scores, lines(prompt_score_floats(shape_)));
    each_.partial = lines(Partial::size_floats(kPromptTileRows, shape_.padded_value_dim()));
  }
  const std::size_t needed = each_.all() * static_cast<std::size_t>(threads_);
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

void AttentionWork::plan_items(const PagedCall& call, int num_threads) {
  items_.clear();
  cost_ = 0;
  has_prompts_ = false;
  const auto is_prompt = [&](std::int64_t token) {
    return call.prompt_rows != nullptr && call.prompt_rows[token] != 0;
  };
  for (std::size_t s = 0; s < call.past.size(); ++s) {
    const std::int64_t first = call.cumulative[s];
    const std::int64_t end = call.cumulative[s + 1];
    QueryTile tile;
    tile.blocks = call.block_table + static_cast<std::int64_t>(s) * call.max_blocks;
    tile.first_token = first;
    tile.past = call.past[s];
    tile.total = call.past[s] + end - first;
    // Neighbours of a kind share tiles: a recomputed sequence has tokens of its prompt and generated ones.
    for (std::int64_t begin = first, next = first; begin < end; begin = next) {
      tile.is_prompt = is_prompt(begin);
      while (next < end && is_prompt(next) == tile.is_prompt) ++next;
      tile.first_row = (begin - first) * shape_.group();
      has_prompts_ = has_prompts_ || tile.is_prompt;
      const std::int64_t rows = (next - begin) * shape_.group();
      tile.num_rows = static_cast<int>(rows);
      const std::int64_t ranges = count_ranges(visible_keys(shape_, tile));
      add_items(tile, rows, tile.is_prompt ? prompt_tile_rows(rows * shape_.kv_heads, ranges, num_threads) : kTileRows);
    }
  }
}

/// Items for `rows` rows from tile.first_row on, for each KV head.
void AttentionWork::add_items(const QueryTile& tile, std::int64_t rows, std::int64_t most_rows) {
  const std::int64_t tiles = (rows + most_rows - 1) / most_rows;
  const std::int64_t start = tile.first_row;
  // Even tiles; those of prompts of whole strips.
  constexpr std::int64_t kStrip = 2 * kPromptRowStep;
  const std::int64_t even = (rows + tiles - 1) / tiles;
  const std::int64_t tile_rows = tile.is_prompt ? (even + kStrip - 1) / kStrip * kStrip : even;
  AttentionItem item;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t t = 0; t < tiles; ++t) {
      item.tile = tile;
      item.tile.kv_head = head;
      item.tile.first_row = start + t * tile_rows;
      item.tile.num_rows = static_cast<int>(std::min(tile_rows, rows - t * tile_rows));
      const KeySpan seen = visible_keys(shape_, item.tile);
      item.first_range = static_cast<int>(seen.begin / kRangeKeys);
      item.num_ranges = static_cast<int>(count_ranges(seen));
      items_.push_back(item);
      cost_ += item_cost(shape_, item);
    }
  }
}

void AttentionWork::plan_pieces() {
  pieces_.clear();
  const auto target = [&](double pieces_per_thread) {
    return threads_ == 1 ? cost_ : std::max(kPieceCost, cost_ / (pieces_per_thread * threads_));
  };
  std::size_t partials = 0;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (is_tall(items_[i].tile)) partials = cut_item(i, target(kTallPiecesPerThread), partials);
  }
  const std::size_t tall = pieces_.size();
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (!is_tall(items_[i].tile)) partials = cut_item(i, target(kPiecesPerThread), partials);
  }
  if (partials_.size() < lines(partials)) partials_.resize(lines(partials));
  plan_starts(tall);
}

/// Cuts an item into pieces of about this cost, its partial results at `partials`; returns where those of the next go.
std::size_t AttentionWork::cut_item(std::size_t index, double target, std::size_t partials) {
  AttentionItem& item = items_[index];
  const int pieces = std::clamp(static_cast<int>(item_cost(shape_, item) / target), 1, item.num_ranges);
  item.is_split = pieces > 1;
  item.open_pieces = pieces;
  item.partials_at = partials;
  for (int p = 0; p < pieces; ++p) {
    const int begin = item.num_ranges * p / pieces;
    pieces_.push_back({index, item.first_range + begin, item.num_ranges * (p + 1) / pieces - begin});
  }
  if (!item.is_split) return partials;
  return partials + 16 * lines(Partial::size_floats(partial_rows(item.tile), shape_.padded_value_dim())) *
                        static_cast<std::size_t>(item.num_ranges);
}

void AttentionWork::plan_starts(std::size_t tall) {
  const auto cost = [&](const AttentionPiece& piece) {
    const QueryTile& tile = items_[piece.item].tile;
    const KeySpan seen = visible_keys(shape_, tile);
    const std::int64_t begin = std::max(seen.begin, std::int64_t{piece.first_range} * kRangeKeys);
    const std::int64_t end = std::min(seen.end, std::int64_t{piece.first_range + piece.num_ranges} * kRangeKeys);
    return tile_cost(shape_, tile, {begin, end});
  };
  double all = 0;
  for (std::size_t i = tall; i < pieces_.size(); ++i) all += cost(pieces_[i]);
  const int ranges = std::min(threads_, static_cast<int>(IndexRanges::kMost));
  starts_.assign(1, tall);
  double before = 0;
  for (std::size_t i = tall; i < pieces_.size(); ++i) {
    // A piece begins the next range if most of it lies behind that range's begin.
    const double half = cost(pieces_[i]) / 2;
    while (static_cast<int>(starts_.size()) < ranges &&
           before + half >= all * static_cast<double>(starts_.size()) / ranges) {
      starts_.push_back(i);
    }
    before += 2 * half;
  }
  starts_.resize(static_cast<std::size_t>(ranges) + 1, pieces_.size());
}

Partial AttentionWork::partial(const AttentionItem& item, int range) {
  const std::size_t each = lines(Partial::size_floats(partial_rows(item.tile), shape_.padded_value_dim()));
  const std::size_t at = item.partials_at / 16 + each * static_cast<std::size_t>(range - item.first_range);
  return Partial::in(partials_[at].values, partial_rows(item.tile));
}

AttentionWork::Buffers AttentionWork::buffers(int thread) {
  FloatLine* const packed = buffers_.data() + each_.all() * static_cast<std::size_t>(thread);
  FloatLine* const scores = packed + each_.packed;
  FloatLine* const scratch = scores + each_.scores;
  FloatLine* const total = scratch + each_.scratch;
  const int rows = has_prompts_ ? kPromptTileRows : kTileRows;
  return {packed->values, scores->values, scratch->values, Partial::in(total->values, rows),
          Partial::in((total + each_.partial)->values, rows)};
}

}  // namespace genai::kernels
