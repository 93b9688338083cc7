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

/// New tokens that one thread writes in one go: those of a block mostly, so that threads do not share cache lines.
constexpr std::int64_t kWriteTokens = 16;

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
    write(context, call, *work);
    run_all(context, work->pieces().size(), work->attention_threads(),
            [&](std::size_t index, int thread, NextIndex next) {
              run_piece(call, *work, {work->pieces()[index], next}, thread);
            });
  }

 private:
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

  void write(const ort::KernelContext& context, const PagedCall& call, AttentionWork& work) const {
    const std::int64_t parts = (call.num_tokens + kWriteTokens - 1) / kWriteTokens;
    const std::int64_t heads = call.shape.kv_heads;
    run_all(context, static_cast<std::size_t>(parts * heads), work.write_threads(), [&](std::size_t index, int thread) {
      const std::int64_t part = static_cast<std::int64_t>(index) / heads;
      const std::int64_t end = std::min(call.num_tokens, (part + 1) * kWriteTokens);
      const int head = static_cast<int>(static_cast<std::int64_t>(index) % heads);
      for (std::int64_t token = part * kWriteTokens; token < end; ++token) prefetch(call, token, head);
      for (std::int64_t token = part * kWriteTokens; token < end; ++token) {
        const TokenPlace& place = work.tokens()[static_cast<std::size_t>(token)];
        if (place.slot < 0) continue;
        kernels_.write_token(call.shape, call.tensors, {token, place.position, place.slot, head},
                             work.buffers(thread).scratch);
      }
    });
  }

  /// A piece, and what tells which one follows it.
  struct Turn {
    const AttentionPiece& piece;
    NextIndex next;
  };

  /// What the thread computes after a range of the piece, as far as that can be known.
  static TileRange range_after(AttentionWork& work, const Turn& turn, int range) {
    const AttentionPiece* piece = &turn.piece;
    if (++range == piece->first_range + piece->num_ranges) {
      const std::size_t next = turn.next();
      if (next >= work.pieces().size()) return {};
      piece = &work.pieces()[next];
      range = piece->first_range;
    }
    return {&work.items()[piece->item].tile, range};
  }

  void run_piece(const PagedCall& call, AttentionWork& work, const Turn& turn, int thread) const {
    const AttentionPiece& piece = turn.piece;
    AttentionItem& item = work.items()[piece.item];
    const AttentionWork::Buffers buffers = work.buffers(thread);
    const QueryTile& tile = item.tile;
    const AttentionKernels& kernels = tile.is_prompt ? *prompt_kernels_ : kernels_;
    kernels.pack_queries(call.shape, call.tensors, tile, buffers.packed, buffers.scratch);
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
