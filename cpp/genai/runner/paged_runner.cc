#include "genai/runner/paged_runner.h"

#include "genai/base/error.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace genai::runner {
namespace {

std::vector<std::string> input_names(const ModelSpec& spec, const KvStorage& storage) {
  std::vector<std::string> names;
  for (const InputPort& port : PagedInputs::ports(spec)) names.push_back(port.name);
  for (const KvStorage::Tensor& tensor : storage.tensors()) names.push_back(tensor.name);
  return names;
}

std::vector<std::string> output_names(const ModelSpec& spec, const KvStorage& storage) {
  std::vector<std::string> names = {spec.logits};
  for (const KvStorage::Tensor& tensor : storage.tensors()) {
    if (!tensor.present.empty()) names.push_back(tensor.present);
  }
  return names;
}

/// The memory for just the blocks that the graph has, where it says how many.
KvMemory memory_for(const ModelSpec& spec, KvMemory memory) {
  if (spec.num_blocks > 0) {
    memory.hot_bytes = spec.num_blocks * KvStorage::block_bytes_of(spec.paged_layers, spec.block_size);
  }
  return memory;
}

/// Rank of the logits when a Run may write them where we say: [rows, vocab] or [1, rows, vocab]; else 0.
std::size_t bindable_rank(const LoadedModel& model) {
  const ort::Port& logits = *model.session().find_output(model.spec().logits);
  const std::size_t rank = logits.dims.size();
  const bool known = (rank == 2 || rank == 3) && logits.dims.back() == model.spec().vocab_size;
  return known && logits.dtype == DType::kFloat32 ? rank : 0;
}

}  // namespace

PagedRunner::PagedRunner(std::unique_ptr<LoadedModel> model, const KvMemory& memory)
    : model_(std::move(model)),
      info_(model_->info()),
      storage_(model_->spec().paged_layers, model_->spec().block_size, memory_for(model_->spec(), memory)),
      inputs_(model_->spec(), model_->ort_library(), decode_memo_from_environment()),
      frame_(model_->session(), input_names(model_->spec(), storage_), output_names(model_->spec(), storage_)),
      logits_of_(logits_of(model_->spec())),
      bindable_rank_(bindable_rank(*model_)),
      logits_(model_->spec()),
      written_(static_cast<std::size_t>(storage_.num_blocks(KvTier::kHot))) {
  info_.decoder = "paged";
  info_.shares_blocks = true;
  info_.block_size = model_->spec().block_size;
  info_.kv_bytes_per_token = storage_.block_bytes() / info_.block_size;
  info_.num_hot_blocks = storage_.num_blocks(KvTier::kHot);
  info_.num_warm_blocks = storage_.num_blocks(KvTier::kWarm);
  info_.num_cold_blocks = storage_.num_blocks(KvTier::kCold);
  bind_caches();
}

PagedRunner::LogitsOf PagedRunner::logits_of(const ModelSpec& spec) {
  if (spec.logits_indices) return LogitsOf::kPicked;
  return spec.logits_of_rows ? LogitsOf::kSequences : LogitsOf::kTokens;
}

void PagedRunner::bind_caches() {
  std::size_t input = inputs_.num_inputs();
  std::size_t output = 1;
  const auto view = [this](const KvStorage::Tensor& tensor, const tensor::Buffer& buffer) {
    return ort::Value::view(model_->ort_library(), tensor.dtype, tensor.dims, buffer.data());
  };
  for (const KvStorage::Tensor& tensor : storage_.tensors()) {
    frame_.set_input(input++, view(tensor, tensor.buffer));
    if (!tensor.present.empty()) frame_.set_output(output++, view(tensor, tensor.next));
  }
}

std::vector<KvFailure> PagedRunner::apply(std::span<const KvOp> ops) {
  std::vector<KvFailure> failures;
  for (const KvOp& op : ops) {
    switch (op.kind) {
      case KvOp::Kind::kCopyBlock:
        check(op.from.tier == KvTier::kHot && op.to.tier == KvTier::kHot, "a KV block is copied outside the hot tier");
        storage_.copy(op.from.index, op.to.index);
        mark_written(op.to);
        break;
      case KvOp::Kind::kMoveBlock:
        try {
          move(op);
        } catch (const Error& error) {
          if (error.code() == ErrorCode::kInternal) throw;
          failures.push_back({op, error.what()});
        }
        break;
      case KvOp::Kind::kCopySequence:
      case KvOp::Kind::kReleaseSequence:
        check(false, "an operation on whole sequences reached the paged decoder");
    }
  }
  return failures;
}

void PagedRunner::move(const KvOp& op) {
  const auto start = std::chrono::steady_clock::now();
  storage_.move(op.from, op.to);
  mark_written(op.to);
  move_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++moved_blocks_;
}

void PagedRunner::write_block(KvPlace place, std::span<const std::byte> bytes) {
  storage_.write(place, bytes);
  mark_written(place);
}

void PagedRunner::mark_written(KvPlace place) {
  if (place.tier != KvTier::kHot || written_[static_cast<std::size_t>(place.index)]) return;
  written_[static_cast<std::size_t>(place.index)] = true;
  ++num_written_;
}

void PagedRunner::mark_written(const StepPlan& plan) {
  for (const ScheduledSequence& sequence : plan.sequences) {
    const std::int64_t end = sequence.num_computed_tokens + sequence.num_scheduled_tokens;
    for (std::int64_t block = sequence.num_computed_tokens / info_.block_size; block * info_.block_size < end;
         ++block) {
      mark_written({.tier = KvTier::kHot, .index = sequence.block_table[static_cast<std::size_t>(block)]});
    }
  }
}

/// Once a step, so that none of them waits for many pages.
void PagedRunner::join_pages() {
  const std::int64_t before = num_filled_;
  while (num_filled_ < std::ssize(written_) && written_[static_cast<std::size_t>(num_filled_)]) ++num_filled_;
  has_small_pages_ = (has_small_pages_ || num_filled_ > before) && storage_.join_pages(num_filled_);
}

StepLogits PagedRunner::execute(const StepPlan& plan) {
  model_->begin(plan);
  std::int64_t num_rows = 0;
  std::int64_t num_tokens = 0;
  for (const ScheduledSequence& sequence : plan.sequences) {
    if (sequence.needs_logits) ++num_rows;
    num_tokens += sequence.num_scheduled_tokens;
  }
  if (num_tokens == 0) return {.values = {}, .vocab_size = info_.vocab_size, .num_rows = 0};

  const bool is_bound = prepare(plan, num_rows, num_tokens);
  mark_written(plan);
  model_->run(frame_, {.num_tokens = num_tokens, .num_rows = static_cast<std::int64_t>(plan.sequences.size())});
  join_pages();
  if (frame_.num_outputs() > 1) {
    storage_.take_presents();
    bind_caches();
  }
  if (!is_bound) return collect(plan, num_rows);
  return {.values = {bound_.data_as<float>(), static_cast<std::size_t>(num_rows * info_.vocab_size)},
          .vocab_size = info_.vocab_size,
          .num_rows = num_rows};
}

/// Sets the inputs and outputs of a Run; whether its logits are written to bound_.
bool PagedRunner::prepare(const StepPlan& plan, std::int64_t num_rows, std::int64_t num_tokens) {
  const TraceSpan span(model_->trace(), TraceName::kInputs);
  inputs_.fill(frame_, plan, info_.num_hot_blocks);
  // All tokens' logits are bound only when all of them are wanted: those of a long chunk would never be freed.
  const std::int64_t num_given = logits_of_ == LogitsOf::kSequences ? std::ssize(plan.sequences) : num_tokens;
  const bool rows_are_the_result = logits_of_ == LogitsOf::kPicked || num_rows == num_given;
  const bool is_bound = rows_are_the_result && bind_logits(std::max<std::int64_t>(num_rows, 1));
  if (!is_bound) {
    frame_.set_output(0, ort::Value());
    bound_rows_ = -1;
  }
  return is_bound;
}

/// Makes the Run write its logits to bound_; false when it cannot.
bool PagedRunner::bind_logits(std::int64_t rows) {
  if (bindable_rank_ == 0) return false;
  if (bound_rows_ == rows && inputs_.memo() == DecodeMemo::kOn) return true;
  const std::size_t needed = static_cast<std::size_t>(rows * info_.vocab_size) * sizeof(float);
  if (bound_.size_bytes() < needed) {
    frame_.set_output(0, ort::Value());
    bound_rows_ = -1;
    bound_ = tensor::Buffer(needed);
  }
  const Dims dims = bindable_rank_ == 2 ? Dims{rows, info_.vocab_size} : Dims{1, rows, info_.vocab_size};
  frame_.set_output(0, ort::Value::view(model_->ort_library(), DType::kFloat32, dims, bound_.data()));
  bound_rows_ = rows;
  return true;
}

/// Copies, and converts to float32, the wanted rows of the logits that ONNX Runtime allocated.
StepLogits PagedRunner::collect(const StepPlan& plan, std::int64_t num_rows) {
  const TraceSpan span(model_->trace(), TraceName::kLogits);
  const ort::Value logits = frame_.take_output(0);
  logits_.begin(num_rows);
  std::int64_t row = 0;
  std::int64_t end = 0;
  std::int64_t number = 0;
  for (const ScheduledSequence& sequence : plan.sequences) {
    end += sequence.num_scheduled_tokens;
    ++number;
    if (!sequence.needs_logits) continue;
    switch (logits_of_) {
      case LogitsOf::kTokens:
        logits_.take_position(row, logits, end - 1);
        break;
      case LogitsOf::kSequences:
        logits_.take_position(row, logits, number - 1);
        break;
      case LogitsOf::kPicked:
        logits_.take_position(row, logits, row);
        break;
    }
    ++row;
  }
  return logits_.result();
}

RunnerStats PagedRunner::stats() const {
  return {.kv_bytes = num_written_ * storage_.block_bytes(),
          .num_runs = model_->num_runs(),
          .num_replays = inputs_.num_replays(),
          .run_seconds = model_->run_seconds(),
          .moved_blocks = moved_blocks_,
          .move_seconds = move_seconds_,
          .session_bytes = model_->session_bytes()};
}

}  // namespace genai::runner
