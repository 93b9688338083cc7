#pragma once

#include "genai/kernels/element_kind.h"
#include "genai/kernels/isa.h"

#include <cstddef>
#include <cstdint>

// Attention over paged KV, cut into tiles of query rows and ranges of keys; docs/design/kernels.md.
namespace genai::kernels {

/// Keys of one range. Ranges begin at multiples of it, counted from the sequence's first token, and their partial
/// results are merged in order: so a row's result depends neither on how its sequence was cut into pieces nor on the
/// rows beside it.
inline constexpr int kRangeKeys = 256;

/// Keys of one step of the kernels: a block holds a multiple of it.
inline constexpr int kGroupKeys = 16;

/// Most query rows of a tile.
inline constexpr int kTileRows = 48;

/// A tile of no more rows waits for memory.
inline constexpr int kWaitingRows = 8;

/// Most query rows of a tile of prompts, whose K and V are converted once for all of them; they are computed 16 by 16.
inline constexpr int kPromptTileRows = 192;
inline constexpr int kPromptRowStep = 16;

/// Floats from one row of scores to the next; not a multiple of 1024, so that rows do not share cache sets.
inline constexpr int kScoreStride = kRangeKeys + 16;

/// What all sequences of a call share.
struct AttentionShape {
  int num_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;
  int block_size = 0;  ///< multiple of kGroupKeys
  int rotary_dim = 0;  ///< even, <= head_dim; 0 = no rotary embedding
  int window = 0;      ///< a row sees itself and window - 1 keys before it; 0 = all
  float scale = 1.0F;
  float softcap = 0.0F;  ///< 0 = off
  float norm_epsilon = 1e-6F;
  bool interleaved = false;  ///< rotary pairs are neighbours, not halves
  bool causal = true;
  bool smooth_softmax = false;             ///< a sink of 0 where head_sink is absent
  ElementKind io = ElementKind::kFloat32;  ///< of query, key, value, cos, sin, norm weights, sink and output
  ElementKind kv = ElementKind::kFloat32;  ///< of the caches

  int group() const { return num_heads / kv_heads; }
  /// value_dim in whole vectors of 16.
  int padded_value_dim() const { return (value_dim + 15) / 16 * 16; }
  /// head_dim in whole tiles of 32.
  int tiled_head_dim() const { return (head_dim + 31) / 32 * 32; }
};

/// The tensors of a call: loans. Strides are elements from one token to the next.
struct AttentionTensors {
  const std::byte* query = nullptr;
  const std::byte* key = nullptr;
  const std::byte* value = nullptr;
  std::ptrdiff_t query_stride = 0;
  std::ptrdiff_t key_stride = 0;
  std::ptrdiff_t value_stride = 0;
  std::byte* key_cache = nullptr;    ///< [blocks, kv_heads, head_dim, block_size]
  std::byte* value_cache = nullptr;  ///< [blocks, kv_heads, block_size, value_dim]
  float* key_scale = nullptr;        ///< [blocks, kv_heads, block_size], int8 only
  float* value_scale = nullptr;
  const std::byte* cos = nullptr;  ///< [positions, rotary_dim / 2]
  const std::byte* sin = nullptr;
  const std::byte* query_norm = nullptr;  ///< [head_dim] or nullptr
  const std::byte* key_norm = nullptr;
  const std::byte* head_sink = nullptr;  ///< [num_heads] or nullptr
  std::byte* output = nullptr;           ///< [tokens, num_heads * value_dim]
};

/// One new token for one KV head.
struct TokenSlot {
  std::int64_t token = 0;     ///< row of key and value
  std::int64_t position = 0;  ///< in its sequence
  std::int64_t slot = 0;      ///< block * block_size + offset
  int kv_head = 0;
};

/// Query rows of one sequence that share a KV head. Row r is head r % group of the sequence's new token r / group.
struct QueryTile {
  const std::int32_t* blocks = nullptr;  ///< the sequence's row of the block table
  std::int64_t first_token = 0;          ///< row of the sequence's first new token in query and output
  std::int64_t past = 0;                 ///< tokens before it
  std::int64_t total = 0;                ///< past and new tokens
  std::int64_t first_row = 0;
  int num_rows = 0;  ///< 1..kTileRows; of prompts 1..kPromptTileRows
  int kv_head = 0;
  bool is_prompt = false;  ///< for prompt_kernels()
};

/// Partial result of a tile: float [rows] max and sum of exponentials, float [rows, padded_value_dim] weighted values.
/// That of a tile of prompts has room for whole kPromptRowStep rows.
struct Partial {
  float* max = nullptr;
  float* sum = nullptr;
  float* values = nullptr;

  static std::size_t size_floats(int rows, int padded_value_dim) {
    return static_cast<std::size_t>(rows) * (static_cast<std::size_t>(padded_value_dim) + 2);
  }
  /// A partial in `memory`, which has size_floats() floats.
  static Partial in(float* memory, int rows) { return {memory, memory + rows, memory + 2 * rows}; }
};

/// A range of keys that a tile meets; tile nullptr = none.
struct TileRange {
  const QueryTile* tile = nullptr;
  int range = 0;
};

/// The kernels for one instruction set. All are free of state. `scratch` has scratch_floats() floats.
struct AttentionKernels {
  /// Normalises and rotates the token's key and writes key and value into their slot.
  void (*write_token)(const AttentionShape&, const AttentionTensors&, const TokenSlot&, float* scratch);
  /// Normalises, rotates and scales the tile's query rows into `packed`, packed_floats() floats.
  void (*pack_queries)(const AttentionShape&, const AttentionTensors&, const QueryTile&, float* packed, float* scratch);
  /// Attention of the packed rows of a tile over the keys of a range. What is computed `next` is fetched meanwhile.
  /// `scores`: kTileRows * kScoreStride.
  void (*attend)(const AttentionShape&, const AttentionTensors&, const TileRange& now, const TileRange& next,
                 const float* packed, float* scores, const Partial& out);
  /// Merges `next` into `total`, rows of the tile.
  void (*merge)(const AttentionShape&, int rows, const Partial& next, const Partial& total);
  /// Adds the sink, divides, and writes the tile's output rows.
  void (*finish)(const AttentionShape&, const AttentionTensors&, const QueryTile&, const Partial& total,
                 float* scratch);
};

/// What of them is other for tiles of prompts.
struct PromptKernels {
  decltype(AttentionKernels::pack_queries) pack_queries;
  decltype(AttentionKernels::attend) attend;
};

/// Floats of the scratch of write_token, pack_queries and finish.
std::size_t scratch_floats(const AttentionShape& shape);
/// Floats of a packed tile.
std::size_t packed_floats(const AttentionShape& shape);

/// Requires: `isa` is supported.
const AttentionKernels& attention_kernels(Isa isa);

/// Kernels for tiles of prompts, whose products take bfloat16; nullptr where `isa` has none. The environment variable
/// ONNX_GENAI_PROMPT_BF16 is not asked. They differ in the sizes of `packed` and `scores`, below, and in what they
/// require: fits_prompt_kernels().
const AttentionKernels* prompt_kernels(Isa isa);
/// Whether head_dim and value_dim are those of whole tiles.
bool fits_prompt_kernels(const AttentionShape& shape);
std::size_t prompt_packed_floats(const AttentionShape& shape);
std::size_t prompt_score_floats(const AttentionShape& shape);

/// First and last + 1 key that row `row` of the tile sees.
struct KeySpan {
  std::int64_t begin;
  std::int64_t end;
};
inline KeySpan visible_keys(const AttentionShape& shape, const QueryTile& tile, int row) {
  const std::int64_t position = tile.past + (tile.first_row + row) / shape.group();
  const std::int64_t first = position - shape.window + 1;
  return {shape.window > 0 && first > 0 ? first : 0, shape.causal ? position + 1 : tile.total};
}
/// What the rows of the tile see together.
inline KeySpan visible_keys(const AttentionShape& shape, const QueryTile& tile) {
  return {visible_keys(shape, tile, 0).begin, visible_keys(shape, tile, tile.num_rows - 1).end};
}

// One for each instruction set; defined where the build has it.
extern const AttentionKernels kAttentionPlain;
extern const AttentionKernels kAttentionNeon;
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;
extern const AttentionKernels kAttentionAvx512Far;  ///< the same, fetching into the second-level cache
extern const PromptKernels kPromptsAvx512Bf16;
extern const PromptKernels kPromptsAmx;

}  // namespace genai::kernels
