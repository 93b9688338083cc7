#include "genai/kernels/paged_inputs.h"

#include "genai/base/error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace genai::kernels {
namespace {

using ort::KernelTensor;

constexpr std::array<const char*, kNumPagedInputs> kNames = {
    "query",         "key",           "value",     "key_cache", "value_cache",        "cumulative_sequence_length",
    "past_seqlens",  "block_table",   "cos_cache", "sin_cache", "slot_mapping",       "head_sink",
    "q_norm_weight", "k_norm_weight", "k_scale",   "v_scale",   "attention_metadata", "prompt_rows"};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "PagedAttention: " + why);
}

std::string text(std::int64_t number) {
  return std::to_string(number);
}

/// A whole number attribute in lowest..highest.
int read_integer(const ort::KernelInfo& info, const char* name, std::int64_t fallback, std::int64_t lowest) {
  constexpr std::int64_t kHighest = 1 << 24;
  const std::int64_t value = info.integer(name, fallback);
  if (value < lowest || value > kHighest) {
    refuse(info.node_name() + ": attribute " + name + " is " + text(value) + "; allowed: " + text(lowest) + ".." +
           text(kHighest));
  }
  return static_cast<int>(value);
}

class Reader {
 public:
  Reader(const PagedAttributes& attributes, const ort::KernelContext& context)
      : attributes_(attributes), context_(context) {}

  PagedCall read(ElementKind io, ElementKind kv) {
    call_.shape.io = io;
    call_.shape.kv = kv;
    read_caches();
    read_rows();
    read_rotary();
    read_small();
    read_sequences();
    return call_;
  }

 private:
  static const char* name(PagedInput which) { return kNames[static_cast<std::size_t>(which)]; }

  KernelTensor optional(PagedInput which) const { return context_.input(static_cast<std::size_t>(which)); }
  KernelTensor required(PagedInput which) const {
    const KernelTensor tensor = optional(which);
    if (!tensor.present()) refuse(std::string(name(which)) + " is missing");
    return tensor;
  }
  /// dims: -1 = any.
  static void expect(PagedInput which, const KernelTensor& tensor, const Dims& dims) {
    bool same = tensor.dims.rank() == dims.rank();
    for (std::size_t axis = 0; same && axis < dims.rank(); ++axis) {
      same = dims[axis] < 0 || tensor.dims[axis] == dims[axis];
    }
    if (same) return;
    const bool has_any = std::ranges::count(dims.span(), -1) > 0;
    refuse(std::string(name(which)) + " has shape " + tensor.dims.text() + "; expected " + dims.text() +
           (has_any ? " (-1 = any size)" : ""));
  }

  void read_caches() {
    AttentionShape& shape = call_.shape;
    const KernelTensor keys = required(PagedInput::kKeyCache);
    const KernelTensor values = required(PagedInput::kValueCache);
    expect(PagedInput::kKeyCache, keys, {-1, attributes_.kv_heads, -1, -1});
    call_.num_blocks = keys.dims[0];
    expect(PagedInput::kValueCache, values, {call_.num_blocks, attributes_.kv_heads, keys.dims[3], -1});
    if (keys.dims[2] < 1 || values.dims[3] < 1 || keys.dims[2] > kMaxDim || values.dims[3] > kMaxDim) {
      refuse("head sizes of key_cache and value_cache are " + text(keys.dims[2]) + " and " + text(values.dims[3]) +
             "; allowed: 1.." + text(kMaxDim));
    }
    if (keys.dims[3] < 1 || keys.dims[3] % kGroupKeys != 0 || keys.dims[3] > kMaxDim) {
      refuse("the block size is " + text(keys.dims[3]) + "; allowed: multiples of " + text(kGroupKeys) + " up to " +
             text(kMaxDim));
    }
    shape.num_heads = attributes_.num_heads;
    shape.kv_heads = attributes_.kv_heads;
    shape.head_dim = static_cast<int>(keys.dims[2]);
    shape.value_dim = static_cast<int>(values.dims[3]);
    shape.block_size = static_cast<int>(keys.dims[3]);
    shape.window = attributes_.window;
    shape.scale = attributes_.scale == 0.0F ? 1.0F / std::sqrt(static_cast<float>(shape.head_dim)) : attributes_.scale;
    shape.softcap = attributes_.softcap;
    shape.norm_epsilon = attributes_.norm_epsilon;
    shape.interleaved = attributes_.interleaved;
    shape.causal = attributes_.causal;
    shape.smooth_softmax = attributes_.smooth_softmax;
    call_.tensors.key_cache = keys.data;
    call_.tensors.value_cache = values.data;
    if (shape.kv != ElementKind::kInt8) return;
    const Dims dims = {call_.num_blocks, shape.kv_heads, shape.block_size};
    const KernelTensor key_scale = required(PagedInput::kKeyScale);
    const KernelTensor value_scale = required(PagedInput::kValueScale);
    expect(PagedInput::kKeyScale, key_scale, dims);
    expect(PagedInput::kValueScale, value_scale, dims);
    call_.tensors.key_scale = key_scale.as<float>();
    call_.tensors.value_scale = value_scale.as<float>();
  }

  /// Query, key and value: [tokens, width] or [1, tokens, width].
  void read_rows() {
    const AttentionShape& shape = call_.shape;
    AttentionTensors& tensors = call_.tensors;
    const KernelTensor query = required(PagedInput::kQuery);
    const KernelTensor key = optional(PagedInput::kKey);
    const KernelTensor value = optional(PagedInput::kValue);
    const std::size_t rank = query.dims.rank();
    if ((rank != 2 && rank != 3) || (rank == 3 && query.dims[0] != 1)) {
      refuse("query has shape " + query.dims.text() + "; expected [tokens, width] or [1, tokens, width]");
    }
    if (key.present() != value.present()) refuse("key and value must both be given, or both be packed into query");
    const std::int64_t query_width = std::int64_t{shape.num_heads} * shape.head_dim;
    const std::int64_t key_width = std::int64_t{shape.kv_heads} * shape.head_dim;
    const std::int64_t value_width = std::int64_t{shape.kv_heads} * shape.value_dim;
    call_.num_tokens = query.dims[rank - 2];
    if (call_.num_tokens > kMaxTokens) {
      refuse("the query has " + text(call_.num_tokens) + " tokens; allowed: up to " + text(kMaxTokens));
    }
    const bool is_packed = !key.present();
    const auto rows_of = [&](std::int64_t width) {
      return rank == 2 ? Dims{call_.num_tokens, width} : Dims{1, call_.num_tokens, width};
    };
    tensors.query_stride = is_packed ? query_width + key_width + value_width : query_width;
    expect(PagedInput::kQuery, query, rows_of(tensors.query_stride));
    tensors.query = query.data;
    if (is_packed) {
      const auto element = static_cast<std::int64_t>(shape.io == ElementKind::kFloat16 ? 2 : 4);
      tensors.key = query.data + query_width * element;
      tensors.value = tensors.key + key_width * element;
      tensors.key_stride = tensors.value_stride = tensors.query_stride;
    } else {
      expect(PagedInput::kKey, key, rows_of(key_width));
      expect(PagedInput::kValue, value, rows_of(value_width));
      tensors.key = key.data;
      tensors.value = value.data;
      tensors.key_stride = key_width;
      tensors.value_stride = value_width;
    }
    call_.output_dims = rows_of(std::int64_t{shape.num_heads} * shape.value_dim);
  }

  void read_rotary() {
    if (!attributes_.do_rotary) return;
    const KernelTensor cos = required(PagedInput::kCos);
    const KernelTensor sin = required(PagedInput::kSin);
    expect(PagedInput::kCos, cos, {-1, -1});
    expect(PagedInput::kSin, sin, cos.dims);
    if (cos.dims[1] * 2 > call_.shape.head_dim) {
      refuse("cos_cache has " + text(cos.dims[1]) + " columns; allowed: up to half of the head size, " +
             text(call_.shape.head_dim / 2));
    }
    num_positions_ = cos.dims[0];
    call_.shape.rotary_dim = static_cast<int>(cos.dims[1] * 2);
    call_.tensors.cos = cos.data;
    call_.tensors.sin = sin.data;
  }

  void read_small() {
    const auto read_one = [&](PagedInput which, std::int64_t size) {
      const KernelTensor tensor = optional(which);
      if (tensor.present()) expect(which, tensor, {size});
      return tensor;
    };
    call_.tensors.head_sink = read_one(PagedInput::kHeadSink, call_.shape.num_heads).data;
    call_.tensors.query_norm = read_one(PagedInput::kQueryNorm, call_.shape.head_dim).data;
    call_.tensors.key_norm = read_one(PagedInput::kKeyNorm, call_.shape.head_dim).data;
    call_.slot_mapping = read_one(PagedInput::kSlotMapping, call_.num_tokens).as<const std::int32_t>();
    call_.prompt_rows = read_one(PagedInput::kPromptRows, call_.num_tokens).as<const std::int32_t>();
  }

  void read_sequences() {
    const KernelTensor past = required(PagedInput::kPastLengths);
    const KernelTensor cumulative = required(PagedInput::kCumulativeLengths);
    const KernelTensor table = required(PagedInput::kBlockTable);
    expect(PagedInput::kPastLengths, past, {-1});
    const std::int64_t sequences = past.dims[0];
    expect(PagedInput::kCumulativeLengths, cumulative, {sequences + 1});
    expect(PagedInput::kBlockTable, table, {sequences, -1});
    call_.max_blocks = table.dims[1];
    call_.past = {past.as<const std::int32_t>(), static_cast<std::size_t>(sequences)};
    call_.cumulative = {cumulative.as<const std::int32_t>(), static_cast<std::size_t>(sequences) + 1};
    call_.block_table = table.as<const std::int32_t>();
    if (call_.cumulative.front() != 0 || call_.cumulative.back() != call_.num_tokens) {
      refuse("cumulative_sequence_length goes from " + text(call_.cumulative.front()) + " to " +
             text(call_.cumulative.back()) + "; expected from 0 to the number of tokens, " + text(call_.num_tokens));
    }
    for (std::size_t s = 0; s < call_.past.size(); ++s) check_sequence(s);
    check_slots();
  }

  void check_sequence(std::size_t s) const {
    const std::string where = "sequence " + std::to_string(s) + ": ";
    const std::int64_t count = call_.cumulative[s + 1] - std::int64_t{call_.cumulative[s]};
    const std::int64_t past = call_.past[s];
    if (count < 0) refuse(where + "cumulative_sequence_length falls by " + text(-count));
    if (past < 0) refuse(where + "past_seqlens is " + text(past) + "; allowed: >= 0");
    if (count == 0) return;
    const std::int64_t total = past + count;
    const std::int64_t block_size = call_.shape.block_size;
    if (total > call_.max_blocks * block_size) {
      refuse(where + text(past) + " past and " + text(count) + " new tokens need more than the " +
             text(call_.max_blocks) + " columns of block_table (" + text(block_size) + " tokens each)");
    }
    if (attributes_.do_rotary && total > num_positions_) {
      refuse(where + "position " + text(total - 1) + "; allowed: below " + text(num_positions_) +
             " (rows of cos_cache)");
    }
    // Blocks before the window are not read.
    const std::int64_t first = call_.shape.window > 0 ? std::max<std::int64_t>(past - call_.shape.window + 1, 0) : 0;
    const std::int32_t* const row = call_.block_table + static_cast<std::int64_t>(s) * call_.max_blocks;
    for (std::int64_t b = first / block_size; b * block_size < total; ++b) {
      if (row[b] >= 0 && row[b] < call_.num_blocks) continue;
      refuse(where + "block_table has block " + text(row[b]) + " at column " + text(b) + "; allowed: 0.." +
             text(call_.num_blocks - 1));
    }
  }

  void check_slots() const {
    if (call_.slot_mapping == nullptr) return;
    const std::int64_t slots = call_.num_blocks * call_.shape.block_size;
    for (std::int64_t t = 0; t < call_.num_tokens; ++t) {
      const std::int32_t slot = call_.slot_mapping[t];
      if (slot >= -1 && slot < slots) continue;
      refuse("slot_mapping of token " + text(t) + " is " + text(slot) + "; allowed: -1.." + text(slots - 1));
    }
  }

  static constexpr std::int64_t kMaxDim = 1 << 16;
  static constexpr std::int64_t kMaxTokens = 1 << 30;

  const PagedAttributes& attributes_;
  const ort::KernelContext& context_;
  PagedCall call_;
  std::int64_t num_positions_ = 0;
};

}  // namespace

PagedAttributes PagedAttributes::read(const ort::KernelInfo& info) {
  PagedAttributes result;
  result.num_heads = read_integer(info, "num_heads", 0, 1);
  result.kv_heads = read_integer(info, "kv_num_heads", 0, 1);
  if (result.num_heads % result.kv_heads != 0) {
    refuse(info.node_name() + ": num_heads = " + text(result.num_heads) +
           " is not a multiple of kv_num_heads = " + text(result.kv_heads));
  }
  const int window = read_integer(info, "local_window_size", -1, -1);
  result.window = window > 0 ? window : 0;
  result.scale = info.number("scale", 0.0F);
  result.softcap = info.number("softcap", 0.0F);
  result.norm_epsilon = info.number("qk_norm_epsilon", 1e-6F);
  if (!std::isfinite(result.scale) || !std::isfinite(result.softcap) || result.softcap < 0.0F) {
    refuse(info.node_name() + ": scale = " + std::to_string(result.scale) +
           ", softcap = " + std::to_string(result.softcap) + "; allowed: finite, softcap >= 0");
  }
  result.do_rotary = info.integer("do_rotary", 0) != 0;
  result.interleaved = info.integer("rotary_interleaved", 0) != 0;
  result.causal = info.integer("is_causal", 1) != 0;
  result.smooth_softmax = info.integer("smooth_softmax", 0) > 0;
  return result;
}

PagedCall PagedCall::read(const PagedAttributes& attributes, ElementKind io, ElementKind kv,
                          const ort::KernelContext& context) {
  return Reader(attributes, context).read(io, kv);
}

}  // namespace genai::kernels
