#pragma once

#include "genai/base/dtype.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace genai {

/// How a graph keeps its KV; decides which decoder runs it.
enum class CacheStyle {
  kSlotGqa,     ///< past and present may share one buffer (GroupQueryAttention)
  kSlotStatic,  ///< caller-owned buffers written at `write_indices` (TensorScatter exports)
  kCopy,        ///< present is a new, longer tensor each step (concatenated past)
  kNone,        ///< the graph has no KV: the whole prefix runs again each step
  kCross,       ///< an encoder-decoder: the graph also reads what an encoder made; its own KV grows or has a fixed size
  kPaged,       ///< rewritten to genai.runtime::PagedAttention: KV in blocks, tokens of many sequences flattened
};

/// One past input and the present output that continues it. A packed layout ([2,B,H,P,D]) has one pair a layer.
struct KvPair {
  std::string past;
  std::string present;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> dims;  ///< shape of the past input; -1 where symbolic
  int batch_axis = 0;
  int sequence_axis = 2;
};

/// How the values of a block lie.
enum class BlockOrder {
  kHeadsFirst,      ///< of graphs that were rewritten to PagedAttention
  kPositionsFirst,  ///< of graphs that were exported with blocks of their own
};

/// KV of one layer of a paged graph. With kHeadsFirst they are graph inputs that the operator reads and writes in
/// place:
///
///     key_cache    [num_blocks, kv_heads, head_dim, block_size]   (transposed within a block, for SIMD)
///     value_cache  [num_blocks, kv_heads, block_size, value_dim]
///     key_scale, value_scale  float32 [num_blocks, kv_heads, block_size], only with int8 KV; else empty names
///
/// With kPositionsFirst the graph reads the inputs and writes outputs, all blocks of them, which are the next inputs:
///
///     key_cache, key_present      [num_blocks, block_size, kv_heads, head_dim]
///     value_cache, value_present  [num_blocks, block_size, kv_heads, value_dim]
struct PagedLayer {
  std::string key_cache;
  std::string value_cache;
  std::string key_scale;
  std::string value_scale;
  BlockOrder order = BlockOrder::kHeadsFirst;
  std::string key_present = {};
  std::string value_present = {};
  DType dtype = DType::kFloat32;  ///< float32, float16, bfloat16 or int8
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;
};

/// A graph input of a known role.
struct InputPort {
  std::string name;
  DType dtype = DType::kInt64;
  int rank = 2;  ///< seqlens_k may be a scalar (rank 0) or [batch] (rank 1)
};

/// A graph input that always receives the same small tensor (`num_logits_to_keep`, `token_type_ids` zeros, ...).
struct ConstantInput {
  enum class Shape { kFixed, kLikeIds };
  InputPort port;
  Shape shape = Shape::kFixed;
  std::vector<std::int64_t> dims;  ///< for kFixed
  std::int64_t value = 0;          ///< every element
};

/// A graph input of a decoder that stays the same for all tokens of a request.
struct CrossInput {
  enum class Source {
    kEncoder,  ///< output `name` of the encoder
    kRequest,  ///< the request's own tensor `input`
    kDecoder,  ///< output `name` of the decoder's first run; before it a tensor of 0 positions
  };
  std::string input;
  Source source = Source::kEncoder;
  std::string name = {};
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> dims;  ///< of the input, [batch, ...]; -1 where symbolic
};

/// A graph input that only an adapter feeds.
struct AdapterInput {
  std::string name;
  bool has_default = false;  ///< the graph has a value for runs without an adapter
};

/// The encoder of an encoder-decoder: runs once a request.
struct EncoderGraph {
  std::string model_path;           ///< absolute path of the .onnx file
  std::vector<std::string> inputs;  ///< each is a tensor of the request
};

/// All that a decoder must know of a single-graph LLM. Made by Python (`graph/io.py`) from the graph and the package;
/// roles come from the graph, never from a model name.
struct ModelSpec {
  std::string model_path;       ///< absolute path of the .onnx file (also names it in errors)
  std::string model_bytes;      ///< serialized rewritten graph; empty = load `model_path` itself
  std::string external_folder;  ///< folder of external data when `model_bytes` is used

  CacheStyle cache = CacheStyle::kCopy;
  InputPort input_ids;
  std::optional<InputPort> attention_mask;         ///< ones, [batch, past + new]
  std::optional<InputPort> position_ids;           ///< absolute, [batch, new]
  std::optional<InputPort> seqlens_k;              ///< valid keys - 1 a row, int32 [batch] or scalar
  std::optional<InputPort> total_sequence_length;  ///< past + new of the longest row, int32 scalar or [1]
  std::optional<InputPort> past_sequence_length;   ///< past of the row, scalar or [1]
  std::optional<InputPort> cache_position;         ///< arange(past, past + new), [new]
  std::optional<InputPort> use_cache_branch;       ///< bool [1]: false on the first run, true with a past
  std::optional<InputPort> write_indices;          ///< first position to write, int64 [batch]
  std::optional<InputPort> nonpad_kv_seqlen;       ///< valid positions after the step, int64 [batch]
  std::vector<ConstantInput> constants;
  std::vector<AdapterInput> adapter_inputs;
  std::vector<KvPair> kv;

  // Only with kCross.
  EncoderGraph encoder;
  std::vector<CrossInput> cross;
  std::vector<KvPair> states;  ///< of fixed size (recurrent), zero at first; `sequence_axis` is then any static axis

  // Only with kPaged, where `input_ids` and `position_ids` are [1, num_tokens] or [num_tokens], all sequences of a step
  // one after another, and `kv` is empty.
  std::optional<InputPort>
      cumulative_sequence_length;               ///< int32 [num_sequences + 1]: first token of each, then the end
  std::optional<InputPort> past_seqlens;        ///< int32 [num_sequences]: positions before the step
  std::optional<InputPort> block_table;         ///< int32 [num_sequences, max_blocks]; -1 behind a row's end
  std::optional<InputPort> logits_indices;      ///< int64 [num_rows]: tokens whose logits are wanted; may be absent
  std::optional<InputPort> prompt_rows;         ///< int32 [num_tokens]: 1 = of a prompt, 0 = generated; may be absent
  std::optional<InputPort> attention_metadata;  ///< int32 [3]: most new tokens, most positions, the same again
  std::vector<PagedLayer> paged_layers;
  int block_size = 0;
  std::int64_t num_blocks = 0;  ///< that the graph's caches have; 0 = any
  bool logits_of_rows = false;  ///< the graph returns one row of logits for each sequence, [num_sequences, vocab]

  std::string logits;  ///< output name
  DType logits_dtype = DType::kFloat32;
  bool last_logits_only = false;  ///< the graph returns logits of the last position only, [batch, 1, vocab]

  std::int64_t vocab_size = 0;     ///< width of the logits; 0 = as the session says
  std::int64_t context_limit = 0;  ///< tokens a sequence may have; 0 = unknown
  std::int64_t max_batch = 0;      ///< rows that a run has; 0 = any (a static batch dimension sets it)
  std::string context_source;      ///< where the limit comes from, for errors ("config.json max_position_embeddings")
};

}  // namespace genai
