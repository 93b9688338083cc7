#include "genai/engine/engine_core.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

// The step of EngineCore: plan, KV operations, execution, sampling, update.

namespace genai::engine {
namespace {

constexpr int kMaxPlanAttempts = 64;         // a step; each failed one drops what could not be moved
constexpr int kMaxFailedApplies = 3;         // one after another, until requests are failed
constexpr std::int64_t kStepsACosting = 32;  // between updates of the costs of moving KV

/// Of the tokens that run now, those that a grammar added; they were never computed before.
std::int64_t take_forced(ActiveChoice& choice, const ScheduledSequence& sequence, std::int64_t counted) {
  const std::int64_t now = std::min(choice.num_forced, sequence.num_scheduled_tokens - counted);
  choice.num_forced -= now;
  return now;
}

bool is_decode(const ScheduledSequence& sequence) {
  return sequence.num_scheduled_tokens == 1 && sequence.needs_logits;
}

}  // namespace

bool EngineCore::step(double now) {
  TraceSpan span(trace_, TraceName::kStep);
  trace_step_ns_ = span.start_ns();
  const std::int64_t prompt_tokens = metrics_.num_prompt_tokens;
  const std::int64_t all_tokens = metrics_.num_step_tokens;
  const double start = clock_();
  step_now_ = now;
  step_start_ = start;
  bool ran = false;
  try {
    expire(now);
    ran = step_parts(now);
  } catch (...) {
    finish_bitmasks();
    if (plan_open_) scheduler_.abandon();
    plan_open_ = false;
    throw;
  }
  erase_ended();
  metrics_.step_seconds += clock_() - start;
  const std::int64_t of_prompts = metrics_.num_prompt_tokens - prompt_tokens;
  span.set(of_prompts, metrics_.num_step_tokens - all_tokens - of_prompts);
  return ran;
}

bool EngineCore::step_parts(double now) {
  StepPlan plan;
  if (!make_plan(now, plan)) return false;
  if (plan.sequences.empty()) return true;
  lend_adapters(plan);

  const double start = clock_();
  {
    const TraceSpan span(trace_, TraceName::kExecute, plan.num_tokens(), std::ssize(plan.sequences));
    trace_execute_ns_ = span.start_ns();
    begin_bitmasks(plan);
    execution_.run(*runner_, plan);
    finish_bitmasks();
  }
  const double executed = clock_();
  metrics_.execute_seconds += executed - start;
  if (execution_.interrupted()) {
    scheduler_.abandon();
    plan_open_ = false;
    return false;
  }
  count_tokens(plan, executed - start);
  collect_rows(plan, now);
  sample_rows(execution_.logits());
  const double sampled = clock_();
  metrics_.sample_seconds += sampled - executed;

  finish_plan(now);
  metrics_.schedule_seconds += clock_() - sampled;
  apply_kv_ops();
  return true;
}

void EngineCore::finish_plan(double now) {
  const TraceSpan span(trace_, TraceName::kUpdate);
  scheduler_.update(result_);
  plan_open_ = false;
  for (const auto& [active, error] : failed_beams_) {
    active->failed = true;
    end_request(*active, FinishReason::kError, error);
  }
  advance_beams(now);
  ++metrics_.num_steps;
  if (metrics_.num_steps % kStepsACosting == 0) scheduler_.kv().set_costs(cost_meter_.costs(runner_->stats()));
}

/// False when nothing can run. An empty plan when KV operations failed again and again: the next step goes on.
bool EngineCore::make_plan(double now, StepPlan& plan) {
  for (int attempt = 0; attempt < kMaxPlanAttempts; ++attempt) {
    {
      const TraceSpan span(trace_, TraceName::kSchedule);
      const double start = clock_();
      plan = scheduler_.schedule(now);
      plan_open_ = !plan.sequences.empty();
      metrics_.schedule_seconds += clock_() - start;
    }
    if (apply_kv_ops()) return plan_open_;
  }
  plan = {};
  return true;
}

/// The scheduler knows nothing of adapters: they are those of the requests.
void EngineCore::lend_adapters(StepPlan& plan) const {
  for (ScheduledSequence& sequence : plan.sequences) {
    sequence.adapters = owners_.at(sequence.id).active->request.adapters;
  }
}

/// Carries out what the bookkeeping wants. False when something failed: an open plan is then abandoned, and sequences
/// that lost KV are queued again.
bool EngineCore::apply_kv_ops() {
  const std::vector<KvOp> ops = scheduler_.take_kv_ops();
  if (ops.empty()) return true;
  const TraceSpan span(trace_, TraceName::kKv, std::ssize(ops));
  const double start = clock_();
  std::vector<runner::KvFailure> failures;
  try {
    failures = runner_->apply(ops);
  } catch (const std::exception& error) {
    start_kv_anew(ops, error.what());
    metrics_.apply_seconds += clock_() - start;
    return false;
  }
  num_failed_applies_ = 0;
  for (const runner::KvFailure& failure : failures) {
    last_kv_failure_ = failure.reason;
    if (failure.op.kind == KvOp::Kind::kCopySequence) {  // there is no child: it is computed anew
      if (plan_open_) scheduler_.abandon();
      scheduler_.preempt(failure.op.child);
      ++metrics_.kv_failed_copies;
    } else {
      scheduler_.kv_failed(failure.op);
    }
    plan_open_ = false;
  }
  metrics_.apply_seconds += clock_() - start;
  return failures.empty();
}

/// The runner threw, so nobody knows which KV is good: all of it is given up, and computed again where it is needed.
void EngineCore::start_kv_anew(std::span<const KvOp> ops, const std::string& reason) {
  last_kv_failure_ = reason;
  if (plan_open_) scheduler_.abandon();
  plan_open_ = false;
  for (const auto& [id, owner] : owners_) scheduler_.preempt(id);
  scheduler_.kv().clear_cache();
  release_sequences(ops);
  release_sequences(scheduler_.take_kv_ops());
  if (++num_failed_applies_ < kMaxFailedApplies) return;
  num_failed_applies_ = 0;
  const Error error(ErrorCode::kBackend, "KV memory could not be managed " + std::to_string(kMaxFailedApplies) +
                                             " times in a row: " + reason +
                                             ". Open the model again, with a smaller limit for KV memory.");
  for (auto& [id, active] : requests_) {
    active->failed = true;
    end_request(*active, FinishReason::kError, error);
  }
  release_sequences(scheduler_.take_kv_ops());
}

/// Frees what ended in decoders with contiguous KV; a runner that cannot even do that is asked no more.
void EngineCore::release_sequences(std::span<const KvOp> ops) {
  for (const KvOp& op : ops) {
    if (op.kind != KvOp::Kind::kReleaseSequence) continue;
    try {
      runner_->apply({&op, 1});
    } catch (const std::exception& error) {
      last_kv_failure_ = error.what();
    }
  }
}

void EngineCore::count_tokens(const StepPlan& plan, double seconds) {
  std::int64_t num_decodes = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const ScheduledSequence& sequence = plan.sequences[i];
    if (is_decode(sequence)) ++num_decodes;
    if (execution_.error(i) != nullptr) continue;
    ActiveRequest& active = *owners_.at(sequence.id).active;
    if (!active.started) {
      active.started = step_now_;
      request_trace_.scheduled(active, sequence.num_computed_tokens, trace_step_ns_);
    }
    request_trace_.ran(active, sequence, trace_execute_ns_);
    const auto prompt_size = static_cast<std::int64_t>(active.request.prompt.size());
    const std::int64_t end = sequence.num_computed_tokens + sequence.num_scheduled_tokens;
    const std::int64_t of_prompt = std::max<std::int64_t>(0, std::min(end, prompt_size) - sequence.num_computed_tokens);
    metrics_.num_prompt_tokens += of_prompt;
    const bool is_newest = end == static_cast<std::int64_t>(sequence.tokens.size()) && end > prompt_size;
    std::int64_t new_tokens = is_newest ? 1 : 0;
    if (!active.beams) new_tokens += take_forced(active.choices[owners_.at(sequence.id).index], sequence, new_tokens);
    metrics_.num_recomputed_tokens += sequence.num_scheduled_tokens - of_prompt - new_tokens;
  }
  const std::int64_t num_tokens = plan.num_tokens();
  const auto bucket = std::ranges::lower_bound(kStepTokenBounds, num_tokens) - kStepTokenBounds.begin();
  ++metrics_.steps_by_tokens[static_cast<std::size_t>(bucket)];
  metrics_.num_step_tokens += num_tokens;
  cost_meter_.ran(num_tokens - num_decodes, num_tokens, seconds);
}

void EngineCore::fail_sequence(const Owner& owner, const ScheduledSequence& sequence, const Error& error) {
  ActiveRequest& active = *owner.active;
  if (active.beams) {
    failed_beams_.emplace_back(&active, error);
    return;
  }
  fail_choice(active, active.choices[owner.index], error);
  // Choices that would have been forked from this prompt fail with it.
  if (owner.index == 0 && sequence.tokens.size() == active.request.prompt.size()) {
    for (ActiveChoice& other : active.choices) fail_choice(active, other, error);
  }
}

/// Fills rows_ and result_, which has one entry a planned sequence, then one a forked choice.
void EngineCore::collect_rows(const StepPlan& plan, double now) {
  rows_.clear();
  ready_beams_.clear();
  failed_beams_.clear();
  result_.sequences.clear();
  for (const ScheduledSequence& sequence : plan.sequences) {
    result_.sequences.push_back({sequence.id, std::nullopt, std::nullopt});
  }
  std::int64_t next_row = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const ScheduledSequence& sequence = plan.sequences[i];
    const Owner owner = owners_.at(sequence.id);
    ActiveRequest& active = *owner.active;
    if (const Error* error = execution_.error(i)) {
      fail_sequence(owner, sequence, *error);
      result_.sequences[i].finish = FinishReason::kError;
      continue;
    }
    if (!sequence.needs_logits) continue;
    const std::int64_t logits_row = next_row++;
    const bool is_end_of_prompt = sequence.tokens.size() == active.request.prompt.size() && owner.index == 0;
    if (is_end_of_prompt) active.num_cached_tokens = scheduler_.num_cached_tokens(sequence.id);
    // A beam that was preempted while it waited for the others has its row.
    if (active.beams && active.beams->row_to_fill(owner.index) == nullptr) continue;
    rows_.push_back({.owner = owner, .id = sequence.id, .logits_row = logits_row, .result = i});
    if (is_end_of_prompt && !active.beams && active.choices.size() > 1) fork_choices(active, logits_row, now);
  }
}

void EngineCore::fork_choices(ActiveRequest& active, std::int64_t logits_row, double now) {
  const SequenceId parent = active.choices.front().id;
  for (std::size_t i = 1; i < active.choices.size(); ++i) {
    const SequenceId child = active.choices[i].id;
    const bool runs = scheduler_.fork(parent,
                                      {.id = child,
                                       .prompt = active.request.prompt,
                                       .max_total_tokens = active.max_total_tokens,
                                       .priority = active.request.priority,
                                       .cache_salt = active.request.cache_salt},
                                      now);
    if (!runs) continue;  // queued: it computes what is not cached when there is room
    rows_.push_back({.owner = {&active, i}, .id = child, .logits_row = logits_row, .result = result_.sequences.size()});
    result_.sequences.push_back({child, std::nullopt, std::nullopt});
  }
}

/// What the grammars allow next is known before the model has run, so it is computed meanwhile.
void EngineCore::begin_bitmasks(const StepPlan& plan) {
  bitmask_jobs_.clear();
  bitmask_choices_.clear();
  for (const ScheduledSequence& sequence : plan.sequences) {
    if (!sequence.needs_logits) continue;
    const Owner owner = owners_.at(sequence.id);
    ActiveRequest& active = *owner.active;
    if (!active.request.grammar) continue;
    // The other choices are forked at the end of the prompt and sample from the same row.
    const bool is_end_of_prompt = sequence.tokens.size() == active.request.prompt.size() && owner.index == 0;
    const std::size_t end = is_end_of_prompt ? active.choices.size() : owner.index + 1;
    for (std::size_t i = owner.index; i < end; ++i) {
      bitmask_choices_.push_back(&active.choices[i]);
      bitmask_jobs_.push_back(active.choices[i].grammar->job());
    }
  }
  bitmask_worker_.begin(bitmask_jobs_);
}

void EngineCore::finish_bitmasks() {
  bitmask_worker_.finish();
  for (std::size_t i = 0; i < bitmask_jobs_.size(); ++i) bitmask_choices_[i]->grammar->take(bitmask_jobs_[i]);
  bitmask_jobs_.clear();
  bitmask_choices_.clear();
}

void EngineCore::make_jobs(const StepLogits& logits) {
  const auto width = static_cast<std::size_t>(logits.vocab_size);
  const auto shares_row = [&](std::size_t i) { return i > 0 && rows_[i - 1].logits_row == rows_[i].logits_row; };
  std::size_t num_copies = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) num_copies += shares_row(i) ? 1 : 0;
  row_copies_.resize(num_copies * width);
  std::size_t next_copy = 0;
  jobs_.clear();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    ActiveRequest& active = *row.owner.active;
    std::span<float> values = logits.row(row.logits_row);
    if (shares_row(i)) {  // sampling changes a row, so all but its first user get a copy
      const std::span<float> copy = std::span(row_copies_).subspan(next_copy++ * width, width);
      std::ranges::copy(values, copy.begin());
      values = copy;
    }
    RowJob& job = jobs_.emplace_back();
    job.sampler = active.choices[active.beams ? 0 : row.owner.index].sampler.get();
    job.request = &active.request;
    job.tokens = scheduler_.tokens(row.id);
    job.logits = values;
    job.vocab_size = static_cast<std::size_t>(vocab_size_);
    if (active.beams) {
      job.beam = active.beams->row_to_fill(row.owner.index);
      job.num_candidates = active.beams->num_candidates();
    } else if (GrammarState* grammar = active.choices[row.owner.index].grammar.get()) {
      job.bitmask = grammar->bitmask();
      job.error = grammar->error();
      job.grammar = grammar;
      job.room = active.max_total_tokens - std::ssize(job.tokens) - 1;
    }
  }
}

void EngineCore::sample_rows(const StepLogits& logits) {
  {
    const TraceSpan span(trace_, TraceName::kSample, std::ssize(rows_));
    make_jobs(logits);
    row_sampling_.sample_rows(jobs_);
  }
  const TraceSpan span(trace_, TraceName::kEmit);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    ActiveRequest& active = *row.owner.active;
    RowJob& job = jobs_[i];
    sched::SequenceResult& result = result_.sequences[row.result];
    if (job.error) {
      result.finish = FinishReason::kError;
      if (active.beams) {
        failed_beams_.emplace_back(&active, *job.error);
      } else {
        fail_choice(active, active.choices[row.owner.index], *job.error);
      }
      continue;
    }
    ++metrics_.num_generated_tokens;
    if (active.beams) {
      active.beams->row_filled(row.owner.index);
      if (active.beams->all_rows_filled()) ready_beams_.push_back(&active);
      continue;
    }
    emit(active, active.choices[row.owner.index], take_token(row, job, result));
  }
}

/// Appends a sampled token, and what a grammar forces behind it.
Event EngineCore::take_token(const Row& row, RowJob& job, sched::SequenceResult& result) {
  ActiveRequest& active = *row.owner.active;
  ActiveChoice& choice = active.choices[row.owner.index];
  Event event = choice.output.append(*job.token, std::move(job.logprob), scheduler_.next_token_is_last(row.id));
  result.token = job.token;
  if (choice.grammar) {
    try {
      // What has to be seen token by token is not written ahead.
      const bool sees_each = active.request.params.logprobs || !active.request.logits_hooks.empty() ||
                             active.request.sampler_hook || !active.request.params.forced_tokens.empty();
      result.forced = choice.grammar->advance(*job.token, sees_each ? 0 : job.room, choice.output, event);
      choice.num_forced = static_cast<std::int64_t>(result.forced.size());
      metrics_.num_generated_tokens += choice.num_forced;
    } catch (const Error& error) {
      active.failed = true;
      event.finish = FinishReason::kError;
      event.error = error;
    } catch (const std::exception& error) {
      active.failed = true;
      event.finish = FinishReason::kError;
      event.error = Error(ErrorCode::kInternal, std::string("the grammar failed: ") + error.what());
    }
  }
  result.finish = event.finish;
  return event;
}

void EngineCore::advance_beams(double now) {
  for (ActiveRequest* active : ready_beams_) {
    if (active->failed) continue;
    BeamGroup& beams = *active->beams;
    for (std::size_t i = 0; i < beams.size(); ++i) owners_.erase(beams.id(i));
    beams.advance(scheduler_, [&] { return new_sequence(); }, now);
    if (!beams.done()) {
      own_beams(*active);
      continue;
    }
    for (std::size_t i = 0; i < active->choices.size(); ++i) {
      ActiveChoice& choice = active->choices[i];
      Event event = beams.result(i, choice.output);
      active->failed = active->failed || event.error.has_value();
      emit(*active, choice, std::move(event));
    }
  }
}

}  // namespace genai::engine
