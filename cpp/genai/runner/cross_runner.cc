#include "genai/runner/cross_runner.h"

#include "genai/base/error.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace genai::runner {
namespace {

std::vector<std::string> input_names(const ModelSpec& spec) {
  std::vector<std::string> names = StepInputs::names(spec);
  for (const KvPair& pair : spec.kv) names.push_back(pair.past);
  for (const KvPair& pair : spec.states) names.push_back(pair.past);
  for (const CrossInput& cross : spec.cross) names.push_back(cross.input);
  return names;
}

std::vector<std::string> output_names(const ModelSpec& spec) {
  std::vector<std::string> names = {spec.logits};
  for (const KvPair& pair : spec.kv) names.push_back(pair.present);
  for (const KvPair& pair : spec.states) names.push_back(pair.present);
  for (const CrossInput& cross : spec.cross) {
    if (cross.source == CrossInput::Source::kDecoder) names.push_back(cross.name);
  }
  return names;
}

std::size_t row_bytes(const Dims& dims, DType dtype) {
  return static_cast<std::size_t>(dims.product(1, dims.rank())) * size_bytes(dtype);
}

/// The member of a group of `count` that stands in a row of a batch.
std::size_t member_of(std::int64_t row, std::int64_t count, std::int64_t batch) {
  return static_cast<std::size_t>(row * count / batch);
}

/// The first row of a member.
std::int64_t first_row_of(std::int64_t member, std::int64_t count, std::int64_t batch) {
  return (member * batch + count - 1) / count;
}

}  // namespace

CrossRunner::CrossRunner(std::unique_ptr<LoadedModel> model, std::unique_ptr<SourceEncoder> encoder)
    : model_(std::move(model)),
      encoder_(std::move(encoder)),
      info_(model_->info()),
      inputs_(model_->spec(), model_->ort_library()),
      frame_(model_->session(), input_names(model_->spec()), output_names(model_->spec())),
      logits_(model_->spec()),
      gathered_(model_->spec().cross.size()) {
  const ModelSpec& spec = model_->spec();
  for (const KvPair& pair : spec.kv) {
    pairs_.push_back({pair.past, pair.present, KvLayout(pair, spec.model_path), true});
  }
  for (const KvPair& pair : spec.states) {
    pairs_.push_back({pair.past, pair.present, KvLayout(pair, spec.model_path), false});
    if (pairs_.back().layout.fixed_positions() > 0) continue;
    throw Error(ErrorCode::kBadPackage, spec.model_path + ": input \"" + pair.past + "\" is a state of no fixed size");
  }
  for (std::size_t i = 0; i < spec.cross.size(); ++i) {
    if (spec.cross[i].source == CrossInput::Source::kDecoder) made_by_decoder_.push_back(i);
  }
  const std::vector<std::int64_t>& ids = model_->session().find_input(spec.input_ids.name)->dims;
  one_token_ = ids.size() < 2 || ids[1] == 1;
  info_.decoder = "cross";
  info_.has_encoder = true;
  info_.can_chunk_prefill = !pairs_.empty() && !spec.use_cache_branch;
  info_.loaded_bytes += encoder_->loaded_bytes();
}

void CrossRunner::interrupt() {
  encoder_->interrupt();
  model_->interrupt();
}

StepLogits CrossRunner::execute(const StepPlan& plan) {
  model_->begin(plan);
  encoder_->clear_interrupt();
  work_.clear();
  std::int64_t num_rows = 0;
  for (const ScheduledSequence& scheduled : plan.sequences) {
    work_.push_back(begin(scheduled));
    if (scheduled.needs_logits) work_.back().logits_row = num_rows++;
  }
  logits_.begin(num_rows);
  for (Group group = next_group(); !group.empty(); group = next_group()) run_group(group);

  for (Work& work : work_) {
    work.state.length = work.end;
    sequences_.insert_or_assign(work.scheduled->id, std::move(work.state));
  }
  work_.clear();
  return logits_.result();
}

/// The sequence as it is when the plan begins, with its source encoded. What was encoded is kept at once: if the step
/// fails, the source is not encoded again.
CrossRunner::Work CrossRunner::begin(const ScheduledSequence& scheduled) {
  Work work{.scheduled = &scheduled, .end = scheduled.num_computed_tokens + scheduled.num_scheduled_tokens};
  if (const auto found = sequences_.find(scheduled.id); found != sequences_.end()) work.state = found->second;
  check(scheduled.num_computed_tokens <= work.state.length,
        "a step plan continues a sequence at a position that was never computed");
  if (scheduled.num_computed_tokens < work.state.length) work.state.past = nullptr;
  if (work.state.past) work.next = scheduled.num_computed_tokens;
  // A graph that keeps nothing runs all tokens, when their logits are wanted.
  if (pairs_.empty() && !scheduled.needs_logits) work.next = work.end;
  if (work.state.cross.empty()) {
    check(scheduled.encoder_inputs != nullptr, "a sequence of an encoder-decoder has no encoder inputs");
    const TraceSpan span(model_->trace(), TraceName::kRun, scheduled.encoder_inputs->num_tokens);
    work.state.cross = encoder_->run(*scheduled.encoder_inputs);
    sequences_[scheduled.id].cross = work.state.cross;
  }
  return work;
}

/// Tokens that the sequence's next run takes.
std::int64_t CrossRunner::chunk_of(const Work& work) const {
  const bool one_by_one = one_token_ || (model_->spec().use_cache_branch && work.next > 0);
  return one_by_one ? 1 : work.end - work.next;
}

bool CrossRunner::may_share_run(const Work& first, const Work& second) const {
  if (first.next != second.next || chunk_of(first) != chunk_of(second)) return false;
  for (std::size_t i = 0; i < first.state.cross.size(); ++i) {
    const SharedValue& one = first.state.cross[i];
    const SharedValue& other = second.state.cross[i];
    if (one && other && !(one->dims() == other->dims())) return false;
  }
  return true;
}

/// The first sequence that has tokens left and all that can run with it; empty when none has.
CrossRunner::Group CrossRunner::next_group() {
  const std::int64_t max_batch = model_->spec().max_batch;
  Group group;
  for (Work& work : work_) {
    if (work.next >= work.end) continue;
    if (!group.empty() && !may_share_run(*group.front(), work)) continue;
    if (max_batch > 0 && std::ssize(group) == max_batch) break;
    group.push_back(&work);
  }
  return group;
}

void CrossRunner::run_group(const Group& group) {
  const std::int64_t count = std::ssize(group);
  const std::int64_t batch = model_->spec().max_batch > 0 ? model_->spec().max_batch : count;
  const std::int64_t chunk = chunk_of(*group.front());
  const std::int64_t end = group.front()->next + chunk;
  rows_.clear();
  for (std::int64_t row = 0; row < batch; ++row) {
    const Work& work = *group[member_of(row, count, batch)];
    rows_.push_back(
        {.tokens = work.scheduled->tokens.subspan(static_cast<std::size_t>(work.next), static_cast<std::size_t>(chunk)),
         .past = work.next,
         .mask_first = 0,
         .mask_end = end});
  }
  std::shared_ptr<const Past> past;
  {
    const TraceSpan span(model_->trace(), TraceName::kInputs);
    past = past_of(group);
    bind(group, *past);
  }
  model_->run(frame_, {.num_tokens = batch * chunk, .num_rows = batch});

  if (group.front()->next == 0) take_cross(group);
  past = pairs_.empty() ? nullptr : take_past(end);
  for (std::int64_t member = 0; member < count; ++member) {
    Work& work = *group[static_cast<std::size_t>(member)];
    const std::int64_t row = first_row_of(member, count, batch);
    work.state.past = past;
    work.state.row = row;
    work.next = end;
    if (work.next == work.end) take_logits(work, row);
  }
}

/// What the rows of the run had before: as it lies when it is just that, else copied together.
std::shared_ptr<const CrossRunner::Past> CrossRunner::past_of(const Group& group) {
  const std::int64_t count = std::ssize(group);
  const std::int64_t batch = std::ssize(rows_);
  const auto member = [&](std::int64_t row) -> const Sequence& { return group[member_of(row, count, batch)]->state; };
  const std::shared_ptr<const Past>& first = member(0).past;
  bool as_it_lies = first && first->batch == batch;
  for (std::int64_t row = 0; as_it_lies && row < batch; ++row) {
    as_it_lies = member(row).past == first && member(row).row == row;
  }
  if (as_it_lies) return first;

  auto past = std::make_shared<Past>();
  past->batch = batch;
  past->positions = group.front()->next;
  for (std::size_t pair = 0; pair < pairs_.size(); ++pair) {
    const KvLayout& layout = pairs_[pair].layout;
    const std::int64_t positions = pairs_[pair].grows ? past->positions : layout.fixed_positions();
    ort::Value value = ort::Value::allocate(model_->ort_library(), layout.dtype(), layout.dims(batch, positions));
    for (std::int64_t row = 0; row < batch; ++row) {
      const KvLayout::Place to{.data = value.data(), .batch = batch, .positions = positions, .row = row};
      const Sequence& source = member(row);
      if (!source.past) {
        layout.clear(to, positions);
        continue;
      }
      const KvLayout::Place from{.data = source.past->values[pair].data(),
                                 .batch = source.past->batch,
                                 .positions = positions,
                                 .row = source.row};
      layout.copy(from, to, positions);
    }
    past->values.push_back(std::move(value));
  }
  return past;
}

void CrossRunner::bind(const Group& group, const Past& past) {
  for (std::size_t pair = 0; pair < pairs_.size(); ++pair) frame_.lend_input(past_input(pair), past.values[pair]);
  for (std::size_t i = 0; i < model_->spec().cross.size(); ++i) bind_cross(group, i);
  for (std::size_t i = 0; i < frame_.num_outputs(); ++i) frame_.set_output(i, ort::Value());
  inputs_.fill(frame_, rows_, rows_.front().mask_end);
}

void CrossRunner::bind_cross(const Group& group, std::size_t index) {
  const CrossInput& cross = model_->spec().cross[index];
  const std::int64_t count = std::ssize(group);
  const std::int64_t batch = std::ssize(rows_);
  Gathered& gathered = gathered_[index];
  if (cross.source == CrossInput::Source::kDecoder && group.front()->next == 0) {
    Dims dims{std::span<const std::int64_t>(cross.dims)};
    dims[0] = batch;
    for (std::size_t axis = 1; axis < dims.rank(); ++axis) dims[axis] = std::max<std::int64_t>(dims[axis], 0);
    gathered = {.rows = {}, .value = ort::Value::allocate(model_->ort_library(), cross.dtype, dims)};
    frame_.lend_input(cross_input(index), gathered.value);
    return;
  }
  const SharedValue& first = group.front()->state.cross[index];
  if (batch == 1) {
    frame_.lend_input(cross_input(index), *first);
    return;
  }
  const auto value_of = [&](std::int64_t row) -> const SharedValue& {
    return group[member_of(row, count, batch)]->state.cross[index];
  };
  bool same = std::ssize(gathered.rows) == batch;
  for (std::int64_t row = 0; same && row < batch; ++row) {
    same = gathered.rows[static_cast<std::size_t>(row)] == value_of(row);
  }
  if (!same) {
    Dims dims = first->dims();
    const std::size_t size = row_bytes(dims, cross.dtype);
    dims[0] = batch;
    gathered = {.rows = {}, .value = ort::Value::allocate(model_->ort_library(), cross.dtype, dims)};
    for (std::int64_t row = 0; row < batch; ++row) {
      std::memcpy(gathered.value.data() + static_cast<std::size_t>(row) * size, value_of(row)->data(), size);
      gathered.rows.push_back(value_of(row));
    }
  }
  frame_.lend_input(cross_input(index), gathered.value);
}

/// Takes the outputs of pairs_; they hold `positions` positions.
std::shared_ptr<const CrossRunner::Past> CrossRunner::take_past(std::int64_t positions) {
  auto present = std::make_shared<Past>();
  present->batch = std::ssize(rows_);
  present->positions = positions;
  for (std::size_t pair = 0; pair < pairs_.size(); ++pair) {
    const KvLayout& layout = pairs_[pair].layout;
    const Dims wanted = layout.dims(present->batch, pairs_[pair].grows ? positions : layout.fixed_positions());
    present->values.push_back(frame_.take_output(1 + pair));
    const Dims dims = present->values.back().dims();
    if (dims == wanted) continue;
    throw Error(ErrorCode::kBackend, model_->spec().model_path + ": output \"" + pairs_[pair].present + "\" has dims " +
                                         dims.text() + " after " + std::to_string(positions) + " tokens; expected " +
                                         wanted.text());
  }
  return present;
}

/// Keeps what the first run of the rows made of their sources.
void CrossRunner::take_cross(const Group& group) {
  const std::int64_t count = std::ssize(group);
  const std::int64_t batch = std::ssize(rows_);
  for (std::size_t i = 0; i < made_by_decoder_.size(); ++i) {
    const std::size_t index = made_by_decoder_[i];
    const CrossInput& cross = model_->spec().cross[index];
    ort::Value made = frame_.take_output(1 + pairs_.size() + i);
    Dims dims = made.dims();
    if (dims.rank() != cross.dims.size() || dims[0] != batch) {
      throw Error(ErrorCode::kBackend, model_->spec().model_path + ": output \"" + cross.name + "\" has dims " +
                                           dims.text() + " in the first run of " + std::to_string(batch) + " rows");
    }
    if (batch == 1) {
      group.front()->state.cross[index] = std::make_shared<ort::Value>(std::move(made));
      continue;
    }
    const std::size_t size = row_bytes(dims, cross.dtype);
    dims[0] = 1;
    for (std::int64_t member = 0; member < count; ++member) {
      ort::Value row = ort::Value::allocate(model_->ort_library(), cross.dtype, dims);
      const auto first = static_cast<std::size_t>(first_row_of(member, count, batch));
      std::memcpy(row.data(), made.data() + first * size, size);
      group[static_cast<std::size_t>(member)]->state.cross[index] = std::make_shared<ort::Value>(std::move(row));
    }
  }
}

void CrossRunner::take_logits(const Work& work, std::int64_t row) {
  if (work.logits_row < 0) return;
  const TraceSpan span(model_->trace(), TraceName::kLogits);
  const ort::Value& logits = frame_.output(0);
  if (logits.dims().rank() == 2) {  // [batch, vocab]
    logits_.take_position(work.logits_row, logits, row);
  } else {
    logits_.take(work.logits_row, logits, row);
  }
}

void CrossRunner::fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) {
  const auto found = sequences_.find(parent);
  check(found != sequences_.end() && num_tokens >= 0 && num_tokens <= found->second.length &&
            sequences_.find(child) == sequences_.end(),
        "a fork of more tokens than were computed, of an unknown sequence, or to a known one");
  Sequence copy = found->second;
  if (num_tokens < copy.length) copy.past = nullptr;
  copy.length = num_tokens;
  sequences_.emplace(child, std::move(copy));
}

void CrossRunner::release(SequenceId id) {
  sequences_.erase(id);
  if (sequences_.empty()) gathered_ = std::vector<Gathered>(gathered_.size());
}

RunnerStats CrossRunner::stats() const {
  std::int64_t bytes = 0;
  for (const auto& [id, sequence] : sequences_) bytes += sequence.length * info_.kv_bytes_per_token;
  return {.kv_bytes = bytes,
          .num_runs = model_->num_runs() + encoder_->num_runs(),
          .run_seconds = model_->run_seconds() + encoder_->run_seconds(),
          .session_bytes = model_->session_bytes()};
}

}  // namespace genai::runner
