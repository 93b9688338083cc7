#include "genai/runner/slot_runner.h"

#include "genai/base/error.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

namespace genai::runner {
namespace {

/// Positions that the buffers have beyond what is needed when they grow, before rounding up to a power of two: what was
/// never written to costs no memory, and growing copies.
constexpr std::int64_t kSpareCapacity = 256;
/// The mask of a batch is made this much wider than needed, so that it is laid out anew once in so many steps.
constexpr std::int64_t kMaskStep = 64;
/// What a slot with nothing to run is given.
constexpr std::array<TokenId, 1> kDummyToken = {0};

}  // namespace

SlotRunner::SlotRunner(std::unique_ptr<LoadedModel> model)
    : model_(std::move(model)),
      info_(model_->info()),
      storage_(model_->layouts()),
      decode_(*model_),
      chunk_(*model_),
      logits_(model_->spec()) {
  info_.decoder = "slot";
  const ort::Port& logits = *model_->session().find_output(model_->spec().logits);
  binds_decode_logits_ =
      logits.dtype == DType::kFloat32 && logits.dims.size() == 3 && logits.dims[0] < 0 && logits.dims[1] < 2;
  for (const KvLayout& layout : model_->layouts()) {
    const std::int64_t fixed = layout.fixed_positions();
    if (fixed > 0) fixed_capacity_ = fixed_capacity_ == 0 ? fixed : std::min(fixed_capacity_, fixed);
  }
  if (fixed_capacity_ > 0) {
    info_.context_limit = info_.context_limit == 0 ? fixed_capacity_ : std::min(info_.context_limit, fixed_capacity_);
  }
}

StepLogits SlotRunner::execute(const StepPlan& plan) {
  model_->begin(plan);
  admit(plan);

  std::int64_t num_rows = 0;
  for (const ScheduledSequence& sequence : plan.sequences) {
    Work& work = work_[static_cast<std::size_t>(*table_.find(sequence.id))];
    work = {.sequence = &sequence, .logits_row = sequence.needs_logits ? num_rows++ : -1};
  }
  logits_.begin(num_rows);
  const bool direct = decode_logits_are_the_result(num_rows);
  for (int slot = 0; slot < table_.num_slots();) {
    const int end = end_of_range(slot);
    if (end > slot) run_decode(slot, end - slot, direct ? Logits::kLeave : Logits::kCollect);
    slot = std::max(end, slot + 1);
  }
  for (int slot = 0; slot < table_.num_slots(); ++slot) {
    if (work_[static_cast<std::size_t>(slot)].sequence != nullptr && !is_decode(slot)) run_chunk(slot);
  }
  if (!direct) return logits_.result();
  const std::int64_t vocab = model_->spec().vocab_size;
  return {.values = {decode_logits_.data_as<float>(), static_cast<std::size_t>(num_rows * vocab)},
          .vocab_size = vocab,
          .num_rows = num_rows};
}

/// Whether the step is one decode run whose output is the wanted rows in the wanted order, so that nothing is copied.
bool SlotRunner::decode_logits_are_the_result(std::int64_t num_rows) const {
  if (!binds_decode_logits_ || num_rows != table_.num_slots() || end_of_range(0) != table_.num_slots()) return false;
  for (int slot = 0; slot < table_.num_slots(); ++slot) {
    if (!is_decode(slot) || work_[static_cast<std::size_t>(slot)].logits_row != slot) return false;
  }
  return true;
}

/// Gives each sequence of the plan a slot, closes holes, cuts sequences that go back, and makes room.
void SlotRunner::admit(const StepPlan& plan) {
  for (const ScheduledSequence& sequence : plan.sequences) {
    check_capacity(sequence);
    const std::optional<int> known = table_.find(sequence.id);
    check(sequence.num_computed_tokens <= (known ? table_.length(*known) : 0),
          "a step plan continues a sequence at a position that was never computed");
  }
  for (const ScheduledSequence& sequence : plan.sequences) {
    if (!table_.find(sequence.id)) table_.add(sequence.id);
  }
  // Holes are closed here and not in release(), so that a new sequence takes one before anything is moved.
  std::int64_t longest = 0;
  for (const ScheduledSequence& sequence : plan.sequences) {
    table_.set_length(*table_.find(sequence.id), sequence.num_computed_tokens);
    longest = std::max(longest, sequence.num_computed_tokens + sequence.num_scheduled_tokens);
  }
  while (const std::optional<SlotTable::Move> move = table_.compact()) {
    storage_.copy(move->from, move->to, move->length);
    storage_.discard(move->from);
  }
  reserve(table_.num_slots(), longest);
  work_.assign(static_cast<std::size_t>(table_.num_slots()), Work{});
}

void SlotRunner::check_capacity(const ScheduledSequence& sequence) const {
  const std::int64_t first = sequence.num_computed_tokens;
  const std::int64_t end = first + sequence.num_scheduled_tokens;
  if (fixed_capacity_ == 0 || end <= fixed_capacity_) return;
  throw Error(ErrorCode::kContextOverflow,
              "static-cache write " + std::to_string(first) + ".." + std::to_string(end) + " exceeds capacity " +
                  std::to_string(fixed_capacity_) +
                  " (the size of the KV inputs of the graph). Use a shorter prompt, fewer new tokens, or an export "
                  "with a larger cache.");
}

/// Makes room for `longest` positions, and for a dummy token behind each sequence where the context allows one.
void SlotRunner::reserve(int slots, std::int64_t longest) {
  const std::int64_t limit = info_.context_limit;
  const std::int64_t with_dummy = table_.longest() + 1;
  std::int64_t needed = std::max(longest, limit > 0 ? std::min(with_dummy, limit) : with_dummy);
  if (fixed_capacity_ > 0) {
    needed = fixed_capacity_;
  } else if (needed > storage_.capacity()) {
    const std::int64_t rounded =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(needed + kSpareCapacity)));
    needed = limit > 0 ? std::max(needed, std::min(rounded, limit)) : rounded;
  }
  int grown = std::max(storage_.slots(), 1);
  while (grown < slots) grown *= 2;
  storage_.reserve(grown, needed, table_);
}

/// A slot that runs one token is part of a decode range if the graph takes batches; its first token too.
bool SlotRunner::is_decode(int slot) const {
  const Work& work = work_[static_cast<std::size_t>(slot)];
  return work.sequence != nullptr && work.sequence->num_scheduled_tokens == 1;
}

bool SlotRunner::can_idle(int slot) const {
  const std::int64_t limit = info_.context_limit;
  const std::int64_t next = table_.length(slot) + 1;
  return next <= storage_.capacity() && (limit == 0 || next <= limit);
}

/// End of the longest range of slots that begins at `first`, begins and ends with a decode row, and may share a Run;
/// `first` itself if there is none.
int SlotRunner::end_of_range(int first) const {
  if (!is_decode(first)) return first;
  int end = first + 1;
  if (!model_->takes_ragged_batches()) return end;
  for (int slot = end; slot < table_.num_slots(); ++slot) {
    if (is_decode(slot)) {
      end = slot + 1;
    } else if (!can_idle(slot)) {
      break;
    }
  }
  return end;
}

void SlotRunner::bind(BoundLane& bound, int first, int count) {
  if (bound.first == first && bound.count == count && bound.generation == storage_.generation()) return;
  for (std::size_t pair = 0; pair < model_->layouts().size(); ++pair) {
    Lane& lane = bound.lane;
    lane.frame().set_input(lane.past(pair), storage_.view(pair, first, count, model_->ort_library()));
    lane.frame().set_output(Lane::present(pair), storage_.view(pair, first, count, model_->ort_library()));
  }
  bound.first = first;
  bound.count = count;
  bound.generation = storage_.generation();
}

/// Columns of the mask: what is needed for one row, as the row is then a view of ones; a little more for a batch.
/// Never more than the capacity or the context: the graph may take the width for the length of the longest row.
std::int64_t SlotRunner::mask_width(std::int64_t longest, int count) const {
  const std::int64_t limit = info_.context_limit;
  if (count == 1 || limit == 0) return longest;
  const std::int64_t rounded = (longest + kMaskStep - 1) / kMaskStep * kMaskStep;
  return std::max(longest, std::min({rounded, storage_.capacity(), limit}));
}

void SlotRunner::run_decode(int first, int count, Logits logits) {
  rows_.clear();
  std::int64_t longest = 0;
  for (int slot = first; slot < first + count; ++slot) {
    const std::int64_t past = table_.length(slot);
    const Work& work = work_[static_cast<std::size_t>(slot)];
    const std::span<const TokenId> tokens =
        is_decode(slot) ? work.sequence->tokens.subspan(static_cast<std::size_t>(past), 1) : kDummyToken;
    rows_.push_back({.tokens = tokens, .past = past, .mask_first = 0, .mask_end = past + 1});
    longest = std::max(longest, past + 1);
  }
  ort::RunFrame& frame = decode_.lane.frame();
  {
    const TraceSpan span(model_->trace(), TraceName::kInputs);
    bind(decode_, first, count);
    bind_decode_logits(count);
    decode_.lane.inputs().fill(frame, rows_, mask_width(longest, count));
  }
  model_->run(frame, {.num_tokens = count, .num_rows = count});

  const TraceSpan span(model_->trace(), TraceName::kLogits);
  for (int slot = first; slot < first + count; ++slot) {
    if (!is_decode(slot)) continue;
    table_.set_length(slot, table_.length(slot) + 1);
    const std::int64_t row = work_[static_cast<std::size_t>(slot)].logits_row;
    if (row >= 0 && logits == Logits::kCollect) logits_.take(row, frame.output(Lane::kLogits), slot - first);
  }
}

void SlotRunner::bind_decode_logits(int count) {
  if (!binds_decode_logits_) decode_.lane.frame().set_output(Lane::kLogits, ort::Value());
  if (!binds_decode_logits_ || decode_logits_rows_ == count) return;
  const Dims dims{count, 1, model_->spec().vocab_size};
  const std::size_t needed = static_cast<std::size_t>(dims.num_elements()) * sizeof(float);
  if (decode_logits_.size_bytes() < needed) decode_logits_ = tensor::Buffer(needed);
  decode_.lane.frame().set_output(
      Lane::kLogits, ort::Value::view(model_->ort_library(), DType::kFloat32, dims, decode_logits_.data()));
  decode_logits_rows_ = count;
}

void SlotRunner::run_chunk(int slot) {
  const Work& work = work_[static_cast<std::size_t>(slot)];
  const std::int64_t past = work.sequence->num_computed_tokens;
  const std::int64_t end = past + work.sequence->num_scheduled_tokens;
  const std::span<const TokenId> tokens = work.sequence->tokens.subspan(
      static_cast<std::size_t>(past), static_cast<std::size_t>(work.sequence->num_scheduled_tokens));
  rows_.assign(1, {.tokens = tokens, .past = past, .mask_first = 0, .mask_end = end});
  ort::RunFrame& frame = chunk_.lane.frame();
  {
    const TraceSpan span(model_->trace(), TraceName::kInputs);
    bind(chunk_, slot, 1);
    frame.set_output(Lane::kLogits, ort::Value());
    chunk_.lane.inputs().fill(frame, rows_, end);
  }
  model_->run(frame, {.num_tokens = end - past, .num_rows = 1});

  const TraceSpan span(model_->trace(), TraceName::kLogits);
  table_.set_length(slot, end);
  const ort::Value logits = frame.take_output(Lane::kLogits);
  if (work.logits_row >= 0) logits_.take(work.logits_row, logits, 0);
}

void SlotRunner::fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) {
  const std::optional<int> from = table_.find(parent);
  check(from && num_tokens >= 0 && num_tokens <= table_.length(*from),
        "a fork of more tokens than were computed, or of an unknown sequence");
  const int to = table_.add(child);
  try {
    reserve(table_.num_slots(), num_tokens);
  } catch (...) {
    table_.remove(child);
    throw;
  }
  storage_.copy(*from, to, num_tokens);
  table_.set_length(to, num_tokens);
}

void SlotRunner::release(SequenceId id) {
  const std::optional<int> slot = table_.remove(id);
  if (!slot) return;
  if (table_.num_sequences() == 0) {
    storage_.clear();
  } else if (*slot < storage_.slots()) {
    storage_.discard(*slot);
  }
}

RunnerStats SlotRunner::stats() const {
  // Positions that were never written to take no memory.
  std::int64_t positions = 0;
  for (int slot = 0; slot < table_.num_slots(); ++slot) positions += table_.length(slot);
  return {.kv_bytes = positions * info_.kv_bytes_per_token,
          .num_runs = model_->num_runs(),
          .run_seconds = model_->run_seconds(),
          .session_bytes = model_->session_bytes()};
}

}  // namespace genai::runner
