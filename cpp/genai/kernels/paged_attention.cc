#include "genai/kernels/paged_attention.h"

#include "genai/kernels/attention.h"
#include "genai/kernels/attention_work.h"
#include "genai/kernels/isa.h"
#include "genai/kernels/paged_inputs.h"
#include "genai/kernels/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace genai::kernels {
namespace {

/// New tokens that one thread writes in one go: those of a block mostly, so that threads do not share cache lines. Few
/// tokens are mostly those of many sequences.
constexpr std::int64_t write_tokens(std::int64_t num_tokens) {
  return num_tokens <= 64 ? 2 : 16;
}

/// Counts what threads do and all wait for.
class Countdown {
 public:
  explicit Countdown(std::size_t count) : open_(count) {}
  void count_down() { open_.fetch_sub(1, std::memory_order_release); }
  /// Requires: what is not yet done is being done by other threads.
  void wait() const {
    constexpr int kPolls = 1000;
    for (int i = 0; open_.load(std::memory_order_acquire) != 0; ++i) {
      if (i >= kPolls) std::this_thread::yield();
    }
  }

 private:
  std::atomic<std::size_t> open_;
};

class PagedAttention final : public ort::OpKernel {
 public:
  PagedAttention(const PagedAttributes& attributes, ElementKind io, ElementKind kv,
                 std::shared_ptr<AttentionWorkPool> pool)
      : attributes_(attributes), io_(io), kv_(kv), pool_(std::move(pool)) {}

  void compute(ort::KernelContext& context) const override {
    PagedCall call = PagedCall::read(attributes_, io_, kv_, context);
    call.tensors.output = context.output(0, call.output_dims).data;
    if (call.num_tokens == 0) return;
    if (prompt_kernels_ == nullptr || !fits_prompt_kernels(call.shape)) call.prompt_rows = nullptr;
    const AttentionWorkPool::Loan work = pool_->take();
    work->plan(call, max_threads_);
    run(context, call, *work);
  }

 private:
  /// Threads start once: they write the new tokens' K and V, and compute pieces when all are written.
  void run(const ort::KernelContext& context, const PagedCall& call, AttentionWork& work) const {
    const std::int64_t parts = (call.num_tokens + write_tokens(call.num_tokens) - 1) / write_tokens(call.num_tokens);
    const auto writes = static_cast<std::size_t>(parts * call.shape.kv_heads);
    std::atomic<std::size_t> next_write{0};
    Countdown unwritten(writes);
    std::atomic<std::size_t> next_tall{0};
    IndexRanges ranges(work.starts());
    auto body = [&](std::size_t index) {
      Thread thread{work.buffers(static_cast<int>(index))};
      for (std::size_t i = next_write++; i < writes; i = next_write++) {
        write(call, work, static_cast<std::int64_t>(i), thread.buffers.scratch);
        unwritten.count_down();
      }
      unwritten.wait();
      for (std::size_t i = next_tall++; i < work.tall_pieces(); i = next_tall++) run_piece(call, work, {i}, thread);
      ranges.run(index, [&](std::size_t i, const auto& next) { run_piece(call, work, {i, next()}, thread); });
    };
    if (work.threads() == 1) return body(0);
    context.parallel_for(static_cast<std::size_t>(work.threads()), body);
  }

  /// Rows of a token's head lie apart from those of the next token.
  static void prefetch(const PagedCall& call, std::int64_t token, int head) {
    const std::int64_t element = call.shape.io == ElementKind::kFloat16 ? 2 : 4;
    const auto fetch = [&](const std::byte* rows, std::int64_t stride, std::int64_t width) {
      const std::byte* const row = rows + (token * stride + head * width) * element;
      for (std::int64_t at = 0; at < width * element; at += 64) __builtin_prefetch(row + at);
    };
    fetch(call.tensors.key, call.tensors.key_stride, call.shape.head_dim);
    fetch(call.tensors.value, call.tensors.value_stride, call.shape.value_dim);
  }

  /// Writes part `index`: some tokens of a KV head.
  void write(const PagedCall& call, const AttentionWork& work, std::int64_t index, float* scratch) const {
    const std::int64_t tokens = write_tokens(call.num_tokens);
    const std::int64_t begin = index / call.shape.kv_heads * tokens;
    const std::int64_t end = std::min(call.num_tokens, begin + tokens);
    const int head = static_cast<int>(index % call.shape.kv_heads);
    for (std::int64_t token = begin; token < end; ++token) prefetch(call, token, head);
    for (std::int64_t token = begin; token < end; ++token) {
      const TokenPlace& place = work.tokens()[static_cast<std::size_t>(token)];
      if (place.slot < 0) continue;
      kernels_.write_token(call.shape, call.tensors, {token, place.position, place.slot, head}, scratch);
    }
  }

  /// What a thread has of its own.
  struct Thread {
    AttentionWork::Buffers buffers;
    std::size_t packed_item = IndexRanges::kNone;  ///< whose queries are in buffers.packed
  };

  /// A piece, and the one that follows it if that is known.
  struct Turn {
    std::size_t piece;
    std::size_t next = IndexRanges::kNone;
  };

  /// What the thread computes after a range of the piece, as far as that can be known.
  static TileRange range_after(AttentionWork& work, const Turn& turn, int range) {
    const AttentionPiece* piece = &work.pieces()[turn.piece];
    if (++range == piece->first_range + piece->num_ranges) {
      if (turn.next == IndexRanges::kNone) return {};
      piece = &work.pieces()[turn.next];
      range = piece->first_range;
    }
    return {&work.items()[piece->item].tile, range};
  }

  void run_piece(const PagedCall& call, AttentionWork& work, const Turn& turn, Thread& thread) const {
    const AttentionPiece& piece = work.pieces()[turn.piece];
    AttentionItem& item = work.items()[piece.item];
    const AttentionWork::Buffers& buffers = thread.buffers;
    const QueryTile& tile = item.tile;
    const AttentionKernels& kernels = tile.is_prompt ? *prompt_kernels_ : kernels_;
    if (thread.packed_item != piece.item) {
      kernels.pack_queries(call.shape, call.tensors, tile, buffers.packed, buffers.scratch);
      thread.packed_item = piece.item;
    }
    for (int range = piece.first_range; range < piece.first_range + piece.num_ranges; ++range) {
      const bool is_first = range == item.first_range;
      const Partial out = item.is_split ? work.partial(item, range) : is_first ? buffers.total : buffers.next;
      kernels.attend(call.shape, call.tensors, {&tile, range}, range_after(work, turn, range), buffers.packed,
                     buffers.scores, out);
      if (!item.is_split && !is_first) kernels.merge(call.shape, tile.num_rows, out, buffers.total);
    }
    if (!item.is_split) return kernels.finish(call.shape, call.tensors, tile, buffers.total, buffers.scratch);

    // Whoever ends an item's last piece joins the ranges, in their order.
    if (std::atomic_ref(item.open_pieces).fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const Partial total = work.partial(item, item.first_range);
    for (int i = 1; i < item.num_ranges; ++i) {
      kernels.merge(call.shape, tile.num_rows, work.partial(item, item.first_range + i), total);
    }
    kernels.finish(call.shape, call.tensors, tile, total, buffers.scratch);
  }

  PagedAttributes attributes_;
  ElementKind io_;
  ElementKind kv_;
  Isa isa_ = chosen_isa();
  const AttentionKernels& kernels_ = attention_kernels(isa_);
  const AttentionKernels* prompt_kernels_ = allows_prompt_bf16() ? prompt_kernels(isa_) : nullptr;
  std::shared_ptr<AttentionWorkPool> pool_;  ///< shared by all kernels of the definitions
  int max_threads_ = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
};

std::vector<ort::OpPort> input_ports(DType io, DType kv) {
  constexpr DType kIndex = DType::kInt32;
  constexpr bool kOptional = true;
  return {{io},
          {io, kOptional},
          {io, kOptional},
          {kv},
          {kv},
          {kIndex},
          {kIndex},
          {kIndex},
          {io, kOptional},
          {io, kOptional},
          {kIndex, kOptional},
          {io, kOptional},
          {io, kOptional},
          {io, kOptional},
          {DType::kFloat32, kOptional},
          {DType::kFloat32, kOptional},
          {kIndex, kOptional},
          {kIndex, kOptional}};
}

struct Element {
  DType dtype;
  ElementKind kind;
};

}  // namespace

std::vector<ort::OpDefinition> paged_attention_definitions() {
  constexpr Element kIo[] = {{DType::kFloat32, ElementKind::kFloat32}, {DType::kFloat16, ElementKind::kFloat16}};
  constexpr Element kKv[] = {{DType::kFloat32, ElementKind::kFloat32},
                             {DType::kFloat16, ElementKind::kFloat16},
                             {DType::kBFloat16, ElementKind::kBFloat16},
                             {DType::kInt8, ElementKind::kInt8}};
  const auto pool = std::make_shared<AttentionWorkPool>();
  std::vector<ort::OpDefinition> definitions;
  for (const Element& io : kIo) {
    for (const Element& kv : kKv) {
      definitions.push_back({.name = "PagedAttention",
                             .inputs = input_ports(io.dtype, kv.dtype),
                             .outputs = {{io.dtype}},
                             .create = [io, kv, pool](const ort::KernelInfo& info) {
                               return std::make_unique<PagedAttention>(PagedAttributes::read(info), io.kind, kv.kind,
                                                                       pool);
                             }});
    }
  }
  return definitions;
}

}  // namespace genai::kernels
