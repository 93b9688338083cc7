#include "genai/runner/copy_runner.h"

#include "genai/base/error.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace genai::runner {

CopyRunner::CopyRunner(std::unique_ptr<LoadedModel> model)
    : model_(std::move(model)),
      info_(model_->info()),
      group_lane_(*model_),
      single_lane_(*model_),
      logits_(model_->spec()),
      group_logits_(model_->spec()) {
  const ModelSpec& spec = model_->spec();
  info_.decoder = "copy";
  info_.can_chunk_prefill = spec.cache != CacheStyle::kNone && !spec.use_cache_branch;
  if (spec.kv.empty() || !model_->takes_batches()) uniform_ = Batching::kRefused;
  // Padding needs a mask that hides it and positions that do not count it.
  const bool hides_padding = spec.attention_mask && spec.position_ids && !spec.seqlens_k;
  if (!model_->takes_ragged_batches() || !hides_padding) padded_ = Batching::kRefused;
  for (const KvLayout& layout : model_->layouts()) {
    no_past_.push_back(ort::Value::allocate(model_->ort_library(), layout.dtype(), layout.dims(1, 0)));
  }
}

StepLogits CopyRunner::execute(const StepPlan& plan) {
  model_->begin(plan);
  logits_row_.clear();
  new_caches_.clear();
  new_group_cache_ = Cache{};
  for (const ScheduledSequence& scheduled : plan.sequences) {
    prepare(scheduled);
    if (scheduled.needs_logits) logits_row_.emplace(scheduled.id, static_cast<std::int64_t>(logits_row_.size()));
  }
  logits_.begin(static_cast<std::int64_t>(logits_row_.size()));

  Rows grouped = rows_to_group(plan);
  if (!grouped.empty() && batching_of(grouped) == Batching::kUntried) {
    try_group(grouped);
  } else if (!grouped.empty() && !run_group(grouped)) {
    grouped.clear();
  }
  for (const ScheduledSequence& scheduled : plan.sequences) {
    if (std::find(grouped.begin(), grouped.end(), &scheduled) != grouped.end()) continue;
    if (model_->spec().cache == CacheStyle::kNone) {
      run_prefix(scheduled);
    } else {
      run_single(scheduled);
    }
  }
  commit(plan);
  return logits_.result();
}

/// Makes the sequence known and cuts it to the tokens that the plan counts as computed.
void CopyRunner::prepare(const ScheduledSequence& scheduled) {
  Sequence& sequence = sequences_[scheduled.id];
  const std::int64_t computed = scheduled.num_computed_tokens;
  check(computed <= sequence.length, "a step plan continues a sequence at a position that was never computed");
  if (computed == sequence.length) return;
  if (model_->spec().cache != CacheStyle::kNone) {
    sequence.lost_kv = computed > 0 && !has_all_positions(sequence);
    leave_group(sequence, sequence.lost_kv ? 0 : computed);
  }
  sequence.length = computed;
}

/// Gives the sequence a cache of its own with its first `num_positions` positions.
void CopyRunner::leave_group(Sequence& sequence, std::int64_t num_positions) {
  sequence.cache = extract(sequence, num_positions);
  sequence.group_row = -1;
}

std::int64_t CopyRunner::stored_positions(const Sequence& sequence) const {
  if (sequence.group_row < 0) return sequence.cache.positions;
  return group_.cache.positions - group_.paddings[static_cast<std::size_t>(sequence.group_row)];
}

KvLayout::Place CopyRunner::place(std::size_t pair, const Sequence& sequence) const {
  const bool in_group = sequence.group_row >= 0;
  const Cache& cache = in_group ? group_.cache : sequence.cache;
  return {.data = cache.values[pair].data(),
          .batch = cache.batch,
          .positions = cache.positions,
          .row = in_group ? sequence.group_row : 0,
          .first = in_group ? group_.paddings[static_cast<std::size_t>(sequence.group_row)] : 0};
}

/// False when the graph dropped old KV of the sequence from one of its tensors.
bool CopyRunner::has_all_positions(const Sequence& sequence) const {
  if (sequence.lost_kv) return false;
  if (!drops_old_kv_) return true;
  for (std::size_t pair = 0; pair < sequence.cache.values.size(); ++pair) {
    const Dims dims = sequence.cache.values[pair].dims();
    if (dims[model_->layouts()[pair].sequence_axis()] != sequence.length) return false;
  }
  return true;
}

/// Copies the first positions of a sequence. Requires: the graph has not dropped any.
CopyRunner::Cache CopyRunner::extract(const Sequence& sequence, std::int64_t num_positions) const {
  Cache cache;
  if (num_positions == 0) return cache;
  cache.batch = 1;
  cache.positions = num_positions;
  for (std::size_t pair = 0; pair < model_->layouts().size(); ++pair) {
    const KvLayout& layout = model_->layouts()[pair];
    ort::Value value = ort::Value::allocate(model_->ort_library(), layout.dtype(), layout.dims(1, num_positions));
    const KvLayout::Place to{.data = value.data(), .batch = 1, .positions = num_positions, .row = 0, .first = 0};
    layout.copy(place(pair, sequence), to, num_positions);
    cache.values.push_back(std::move(value));
  }
  return cache;
}

/// The sequences of the plan that decode one token and may share a run; none when there are fewer than two.
CopyRunner::Rows CopyRunner::rows_to_group(const StepPlan& plan) const {
  if (uniform_ == Batching::kRefused || drops_old_kv_) return {};
  std::map<std::int64_t, Rows> by_length;  // one entry when lengths may differ
  for (const ScheduledSequence& scheduled : plan.sequences) {
    if (scheduled.num_scheduled_tokens != 1 || scheduled.num_computed_tokens == 0) continue;
    by_length[padded_ == Batching::kRefused ? scheduled.num_computed_tokens : 0].push_back(&scheduled);
  }
  const auto largest = std::max_element(by_length.begin(), by_length.end(), [](const auto& left, const auto& right) {
    return left.second.size() < right.second.size();
  });
  return largest == by_length.end() || largest->second.size() < 2 ? Rows{} : largest->second;
}

CopyRunner::Batching& CopyRunner::batching_of(const Rows& rows) {
  const bool one_length = std::all_of(rows.begin(), rows.end(), [&](const ScheduledSequence* scheduled) {
    return scheduled->num_computed_tokens == rows[0]->num_computed_tokens;
  });
  return one_length ? uniform_ : padded_;
}

/// Runs the rows alone, then as a group, and keeps the group only if both agree.
void CopyRunner::try_group(const Rows& rows) {
  for (const ScheduledSequence* scheduled : rows) run_single(*scheduled);
  const bool comparable =
      std::all_of(rows.begin(), rows.end(), [](const ScheduledSequence* scheduled) { return scheduled->needs_logits; });
  if (!comparable || drops_old_kv_) return;
  Batching& batching = batching_of(rows);
  batching = group_agrees_with_singles(rows) ? Batching::kTrusted : Batching::kRefused;
  if (batching == Batching::kTrusted) {
    for (const ScheduledSequence* scheduled : rows) new_caches_.erase(scheduled->id);
  } else {
    new_group_cache_ = Cache{};
    dissolve_group();
  }
}

/// Requires: the rows' logits are in logits_. A group that is wrong differs by as much as two random rows do; one that
/// is right differs by rounding, which 8-bit activations make as large as a hundredth of a row's range.
bool CopyRunner::group_agrees_with_singles(const Rows& rows) {
  regroup(rows);
  rows_ = group_rows(rows);
  try {
    new_group_cache_ = run(group_lane_, group_.cache, group_.cache.positions + 1);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBackend) throw;
    return false;
  }
  if (drops_old_kv_) return false;
  group_logits_.begin(1);
  for (const ScheduledSequence* scheduled : rows) {
    const std::span<const float> alone = logits_.result().row(logits_row_.at(scheduled->id));
    group_logits_.take(0, group_lane_.frame().output(Lane::kLogits), sequences_.at(scheduled->id).group_row);
    const std::span<const float> grouped = group_logits_.result().row(0);
    const auto [low, high] = std::minmax_element(alone.begin(), alone.end());
    const float tolerance = 0.03F * (*high - *low);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      if (!(std::abs(alone[i] - grouped[i]) <= tolerance)) return false;
    }
  }
  return true;
}

/// Makes the group consist of just these rows.
void CopyRunner::regroup(const Rows& rows) {
  const bool same = group_.ids.size() == rows.size() &&
                    std::all_of(rows.begin(), rows.end(), [this](const ScheduledSequence* scheduled) {
                      return sequences_.at(scheduled->id).group_row >= 0;
                    });
  if (same) return;

  Group group;
  group.cache.batch = static_cast<std::int64_t>(rows.size());
  for (const ScheduledSequence* scheduled : rows) {
    group.ids.push_back(scheduled->id);
    group.cache.positions = std::max(group.cache.positions, stored_positions(sequences_.at(scheduled->id)));
  }
  for (const SequenceId id : group.ids) {
    group.paddings.push_back(group.cache.positions - stored_positions(sequences_.at(id)));
  }
  for (std::size_t pair = 0; pair < model_->layouts().size(); ++pair) {
    const KvLayout& layout = model_->layouts()[pair];
    group.cache.values.push_back(ort::Value::allocate(model_->ort_library(), layout.dtype(),
                                                      layout.dims(group.cache.batch, group.cache.positions)));
    KvLayout::Place to{.data = group.cache.values.back().data(),
                       .batch = group.cache.batch,
                       .positions = group.cache.positions,
                       .row = 0,
                       .first = 0};
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const Sequence& sequence = sequences_.at(group.ids[row]);
      to.row = static_cast<std::int64_t>(row);
      to.first = 0;
      layout.clear(to, group.paddings[row]);
      to.first = group.paddings[row];
      layout.copy(place(pair, sequence), to, stored_positions(sequence));
    }
  }
  // Nothing below throws for lack of memory but the copies of rows that leave; until then all is as before.
  for (const SequenceId id : group_.ids) {
    const auto found = sequences_.find(id);
    const bool stays = std::find(group.ids.begin(), group.ids.end(), id) != group.ids.end();
    if (stays || found == sequences_.end() || found->second.group_row < 0) continue;
    leave_group(found->second, stored_positions(found->second));
  }
  for (std::size_t row = 0; row < rows.size(); ++row) {
    Sequence& sequence = sequences_.at(group.ids[row]);
    sequence.group_row = static_cast<int>(row);
    sequence.cache = Cache{};
  }
  group_ = std::move(group);
}

/// Runs rows_ on a past and returns the present. Requires: past is empty or of rows_.size() rows.
CopyRunner::Cache CopyRunner::run(Lane& lane, const Cache& past, std::int64_t mask_width) {
  ort::RunFrame& frame = lane.frame();
  const std::vector<ort::Value>& values = past.values.empty() ? no_past_ : past.values;
  {
    const TraceSpan span(model_->trace(), TraceName::kInputs);
    for (std::size_t pair = 0; pair < values.size(); ++pair) {
      frame.lend_input(lane.past(pair), values[pair]);
      frame.set_output(Lane::present(pair), ort::Value());
    }
    frame.set_output(Lane::kLogits, ort::Value());
    lane.inputs().fill(frame, rows_, mask_width);
  }
  const auto num_rows = static_cast<std::int64_t>(rows_.size());
  model_->run(frame, {.num_tokens = num_rows * std::ssize(rows_[0].tokens), .num_rows = num_rows});

  Cache present;
  present.batch = static_cast<std::int64_t>(rows_.size());
  for (std::size_t pair = 0; pair < values.size(); ++pair) {
    present.values.push_back(frame.take_output(Lane::present(pair)));
    const std::int64_t positions = present.values.back().dims()[model_->layouts()[pair].sequence_axis()];
    present.positions = std::max(present.positions, positions);
    if (positions != past.positions + static_cast<std::int64_t>(rows_[0].tokens.size())) drops_old_kv_ = true;
  }
  return present;
}

std::vector<RunRow> CopyRunner::group_rows(const Rows& rows) const {
  std::vector<RunRow> result(rows.size());
  for (const ScheduledSequence* scheduled : rows) {
    const auto row = static_cast<std::size_t>(sequences_.at(scheduled->id).group_row);
    result[row] = {.tokens = scheduled->tokens.subspan(static_cast<std::size_t>(scheduled->num_computed_tokens), 1),
                   .past = scheduled->num_computed_tokens,
                   .mask_first = group_.paddings[row],
                   .mask_end = group_.cache.positions + 1};
  }
  return result;
}

/// False when the group turned out not to be possible: the graph drops old KV. Its rows must then run alone.
bool CopyRunner::run_group(const Rows& rows) {
  regroup(rows);
  rows_ = group_rows(rows);
  Cache present = run(group_lane_, group_.cache, group_.cache.positions + 1);
  if (drops_old_kv_) {
    dissolve_group();
    return false;
  }
  for (const ScheduledSequence* scheduled : rows) {
    take_logits(*scheduled, group_lane_.frame().output(Lane::kLogits), sequences_.at(scheduled->id).group_row);
  }
  new_group_cache_ = std::move(present);
  return true;
}

void CopyRunner::dissolve_group() {
  for (const SequenceId id : group_.ids) {
    Sequence& sequence = sequences_.at(id);
    leave_group(sequence, stored_positions(sequence));
  }
  group_ = Group{};
}

void CopyRunner::run_single(const ScheduledSequence& scheduled) {
  Sequence& sequence = sequences_.at(scheduled.id);
  if (sequence.group_row >= 0) leave_group(sequence, stored_positions(sequence));
  const std::int64_t start = sequence.lost_kv ? 0 : scheduled.num_computed_tokens;
  const std::int64_t end = scheduled.num_computed_tokens + scheduled.num_scheduled_tokens;
  // The branch with a past takes one token at a time in many of these exports.
  const bool one_by_one = model_->spec().use_cache_branch && start > 0;
  const std::int64_t chunk = one_by_one ? 1 : end - start;

  Cache present;
  for (std::int64_t first = start; first < end; first += chunk) {
    const Cache& past = first == start ? sequence.cache : present;
    const std::int64_t width = past.positions + chunk;
    rows_.assign(1,
                 {.tokens = scheduled.tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(chunk)),
                  .past = first,
                  .mask_first = 0,
                  .mask_end = width});
    present = run(single_lane_, past, width);
  }
  take_logits(scheduled, single_lane_.frame().output(Lane::kLogits), 0);
  single_lane_.frame().set_output(Lane::kLogits, ort::Value());
  new_caches_.insert_or_assign(scheduled.id, std::move(present));
}

/// A graph without KV: all tokens so far run again, when their logits are wanted.
void CopyRunner::run_prefix(const ScheduledSequence& scheduled) {
  if (!scheduled.needs_logits) return;
  const std::int64_t end = scheduled.num_computed_tokens + scheduled.num_scheduled_tokens;
  rows_.assign(
      1,
      {.tokens = scheduled.tokens.first(static_cast<std::size_t>(end)), .past = 0, .mask_first = 0, .mask_end = end});
  run(single_lane_, Cache{}, end);
  take_logits(scheduled, single_lane_.frame().output(Lane::kLogits), 0);
  single_lane_.frame().set_output(Lane::kLogits, ort::Value());
}

void CopyRunner::take_logits(const ScheduledSequence& scheduled, const ort::Value& logits, std::int64_t batch_row) {
  const TraceSpan span(model_->trace(), TraceName::kLogits);
  if (scheduled.needs_logits) logits_.take(logits_row_.at(scheduled.id), logits, batch_row);
}

void CopyRunner::commit(const StepPlan& plan) {
  if (new_group_cache_.batch > 0) group_.cache = std::exchange(new_group_cache_, Cache{});
  for (auto& [id, cache] : new_caches_) {
    sequences_.at(id).cache = std::move(cache);
    sequences_.at(id).lost_kv = false;
  }
  new_caches_.clear();
  for (const ScheduledSequence& scheduled : plan.sequences) {
    sequences_.at(scheduled.id).length = scheduled.num_computed_tokens + scheduled.num_scheduled_tokens;
  }
}

void CopyRunner::fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) {
  const auto found = sequences_.find(parent);
  check(found != sequences_.end() && num_tokens >= 0 && num_tokens <= found->second.length &&
            sequences_.find(child) == sequences_.end(),
        "a fork of more tokens than were computed, of an unknown sequence, or to a known one");
  const Sequence& source = found->second;
  Sequence copy;
  copy.length = num_tokens;
  if (model_->spec().cache != CacheStyle::kNone) {
    copy.lost_kv = num_tokens > 0 && !has_all_positions(source);
    if (!copy.lost_kv) copy.cache = extract(source, num_tokens);
  }
  sequences_.emplace(child, std::move(copy));
}

void CopyRunner::release(SequenceId id) {
  sequences_.erase(id);
  const bool group_is_dead = std::none_of(group_.ids.begin(), group_.ids.end(), [this](SequenceId row) {
    const auto found = sequences_.find(row);
    return found != sequences_.end() && found->second.group_row >= 0;
  });
  if (group_is_dead) group_ = Group{};
}

RunnerStats CopyRunner::stats() const {
  std::int64_t bytes = 0;
  const auto add = [&](const Cache& cache) { bytes += cache.batch * cache.positions * info_.kv_bytes_per_token; };
  add(group_.cache);
  for (const auto& [id, sequence] : sequences_) add(sequence.cache);
  return {.kv_bytes = bytes,
          .num_runs = model_->num_runs(),
          .run_seconds = model_->run_seconds(),
          .session_bytes = model_->session_bytes()};
}

}  // namespace genai::runner
