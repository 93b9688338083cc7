#include "genai/engine/plan_execution.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <numeric>
#include <span>
#include <variant>

namespace genai::engine {
namespace {

std::variant<StepLogits, Error> try_run(runner::ModelRunner& runner, const StepPlan& plan) {
  try {
    return runner.execute(plan);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "out of memory while running the model; use a shorter prompt or fewer requests at once");
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  }
}

std::int64_t end_of(const ScheduledSequence& sequence) {
  return sequence.num_computed_tokens + sequence.num_scheduled_tokens;
}

/// The first of the sequence's next positions that has another adapter than the one before; its end when there is none.
std::int64_t end_of_adapter(const ScheduledSequence& sequence) {
  for (const AdapterSpan& span : sequence.adapters) {
    if (span.first > sequence.num_computed_tokens) return std::min(span.first, end_of(sequence));
  }
  return end_of(sequence);
}

/// The adapter of the tokens that run first. A decoder that takes whole prompts alone runs all with the last one.
const Adapter* next_adapter(const ScheduledSequence& sequence, bool can_cut) {
  return adapter_at(sequence.adapters, can_cut ? sequence.num_computed_tokens : end_of(sequence) - 1);
}

bool has_one_adapter(const StepPlan& plan, bool can_cut) {
  const Adapter* const first = plan.sequences.empty() ? nullptr : next_adapter(plan.sequences.front(), can_cut);
  return std::ranges::all_of(plan.sequences, [&](const ScheduledSequence& sequence) {
    return sequence.adapters.empty()
               ? first == nullptr
               : next_adapter(sequence, can_cut) == first && (!can_cut || end_of_adapter(sequence) == end_of(sequence));
  });
}

}  // namespace

void PlanExecution::run(runner::ModelRunner& runner, const StepPlan& plan) {
  errors_.clear();
  interrupted_ = false;
  logits_ = {};
  if (!has_one_adapter(plan, runner.info().can_chunk_prefill)) return run_by_adapter(runner, plan);
  const std::variant<StepLogits, Error> outcome = try_run(runner, plan);
  if (const StepLogits* logits = std::get_if<StepLogits>(&outcome)) {
    logits_ = *logits;
    return;
  }
  const Error& error = std::get<Error>(outcome);
  interrupted_ = error.code() == ErrorCode::kAborted;
  if (interrupted_) return;
  if (plan.sequences.size() <= 1) {
    errors_.assign(plan.sequences.size(), error);
    return;
  }
  begin_rows(runner, plan);
  group_indices_.resize(plan.sequences.size());
  std::iota(group_indices_.begin(), group_indices_.end(), 0);
  run_one_by_one(runner, plan, group_indices_);
  finish_rows(plan);
}

void PlanExecution::run_by_adapter(runner::ModelRunner& runner, const StepPlan& plan) {
  begin_rows(runner, plan);
  rests_.clear();
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) rests_.push_back({.index = i, .sequence = plan.sequences[i]});
  while (!rests_.empty() && !interrupted_) {
    take_group(runner);
    run_group(runner);
    std::erase_if(rests_, [&](const Rest& rest) {
      return rest.sequence.num_scheduled_tokens == 0 || errors_[rest.index].has_value();
    });
  }
  finish_rows(plan);
}

/// Takes what runs with the adapter of the first sequence that is not done, in one run, away from rests_.
void PlanExecution::take_group(const runner::ModelRunner& runner) {
  const bool can_cut = runner.info().can_chunk_prefill;
  const Adapter* const adapter = next_adapter(rests_.front().sequence, can_cut);
  group_.sequences.clear();
  group_indices_.clear();
  for (Rest& rest : rests_) {
    if (next_adapter(rest.sequence, can_cut) != adapter) continue;
    const std::int64_t end = can_cut ? end_of_adapter(rest.sequence) : end_of(rest.sequence);
    ScheduledSequence part = rest.sequence;
    part.num_scheduled_tokens = end - part.num_computed_tokens;
    part.needs_logits = part.needs_logits && end == end_of(rest.sequence);
    rest.sequence.num_scheduled_tokens -= part.num_scheduled_tokens;
    rest.sequence.num_computed_tokens = end;
    group_.sequences.push_back(part);
    group_indices_.push_back(rest.index);
  }
}

void PlanExecution::run_group(runner::ModelRunner& runner) {
  const std::variant<StepLogits, Error> outcome = try_run(runner, group_);
  if (const StepLogits* logits = std::get_if<StepLogits>(&outcome)) {
    keep_rows(group_, group_indices_, *logits);
    return;
  }
  const Error& error = std::get<Error>(outcome);
  interrupted_ = error.code() == ErrorCode::kAborted;
  if (interrupted_) return;
  if (group_.sequences.size() == 1) {
    errors_[group_indices_.front()] = error;
    return;
  }
  run_one_by_one(runner, group_, group_indices_);
}

void PlanExecution::run_one_by_one(runner::ModelRunner& runner, const StepPlan& plan,
                                   const std::vector<std::size_t>& indices) {
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const StepPlan alone{.sequences = {plan.sequences[i]}};
    const std::variant<StepLogits, Error> outcome = try_run(runner, alone);
    if (const StepLogits* part = std::get_if<StepLogits>(&outcome)) {
      keep_rows(alone, {indices[i]}, *part);
      continue;
    }
    errors_[indices[i]] = std::get<Error>(outcome);
    interrupted_ = interrupted_ || errors_[indices[i]]->code() == ErrorCode::kAborted;
    if (interrupted_) return;
  }
}

void PlanExecution::begin_rows(const runner::ModelRunner& runner, const StepPlan& plan) {
  errors_.resize(plan.sequences.size());
  logits_.vocab_size = runner.info().vocab_size;
  row_of_.assign(plan.sequences.size(), 0);
  std::size_t rows = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    if (plan.sequences[i].needs_logits) row_of_[i] = rows++;
  }
  own_logits_.resize(rows * static_cast<std::size_t>(logits_.vocab_size));
}

/// Copies the rows of a part of the plan, whose sequences are those of `indices`.
void PlanExecution::keep_rows(const StepPlan& part, const std::vector<std::size_t>& indices, const StepLogits& logits) {
  std::int64_t row = 0;
  for (std::size_t i = 0; i < part.sequences.size(); ++i) {
    if (!part.sequences[i].needs_logits) continue;
    const auto place =
        static_cast<std::ptrdiff_t>(row_of_[indices[i]]) * static_cast<std::ptrdiff_t>(logits.vocab_size);
    std::ranges::copy(logits.row(row++), std::next(own_logits_.begin(), place));
  }
}

/// Closes the gaps of the sequences that failed.
void PlanExecution::finish_rows(const StepPlan& plan) {
  if (interrupted_) return;
  const auto width = static_cast<std::size_t>(logits_.vocab_size);
  std::size_t rows = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    if (!plan.sequences[i].needs_logits || errors_[i]) continue;
    if (row_of_[i] != rows) {
      const std::span<const float> row = std::span(own_logits_).subspan(row_of_[i] * width, width);
      std::ranges::copy(row, std::next(own_logits_.begin(), static_cast<std::ptrdiff_t>(rows * width)));
    }
    ++rows;
  }
  logits_.num_rows = static_cast<std::int64_t>(rows);
  logits_.values = std::span(own_logits_).first(rows * width);
}

}  // namespace genai::engine
