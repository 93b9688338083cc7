#include "genai/engine/engine_core.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

namespace genai::engine {
namespace {

constexpr std::int64_t kDefaultNewTokens = 512;  // when neither the request nor the model gives a limit

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The smallest known limit wins; equal ones keep the first source.
ContextLimit smallest_limit(const runner::RunnerInfo& info, const EngineOptions& options) {
  ContextLimit best;
  const auto offer = [&](std::int64_t tokens, const std::string& source) {
    if (tokens > 0 && (best.tokens == 0 || tokens < best.tokens)) best = {tokens, source};
  };
  offer(options.context_limit, options.context_source);
  offer(info.context_limit, "the KV capacity that is fixed in the graph");
  return best;
}

std::int64_t capacity_tokens(const runner::RunnerInfo& info, const EngineOptions& options) {
  if (options.kv_budget_bytes <= 0 || info.kv_bytes_per_token <= 0) {
    return std::numeric_limits<std::int64_t>::max() / 2;
  }
  return options.kv_budget_bytes / info.kv_bytes_per_token;
}

/// A table without entries belongs to a package without a tokenizer: all ids may come.
std::int64_t sampled_vocab(const runner::RunnerInfo& info, const TokenTable& tokens) {
  const auto known = static_cast<std::int64_t>(tokens.size());
  return known == 0 ? info.vocab_size : std::min(info.vocab_size, known);
}

sched::SchedulerConfig scheduler_config(const runner::RunnerInfo& info, sched::SchedulerConfig config) {
  config.can_chunk_prefill = config.can_chunk_prefill && info.can_chunk_prefill;
  return config;
}

}  // namespace

EngineCore::EngineCore(std::unique_ptr<runner::ModelRunner> runner, std::shared_ptr<const TokenTable> tokens,
                       EngineOptions options, Sink sink)
    : runner_(std::move(runner)),
      tokens_(std::move(tokens)),
      options_(std::move(options)),
      sink_(std::move(sink)),
      context_(smallest_limit(runner_->info(), options_)),
      vocab_size_(sampled_vocab(runner_->info(), *tokens_)),
      scheduler_(scheduler_config(runner_->info(), options_.scheduler),
                 kv::TokenBudget(capacity_tokens(runner_->info(), options_))) {}

void EngineCore::validate(const Request& request) const {
  const std::int64_t vocab = runner_->info().vocab_size;
  if (request.prompt.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token");
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab) {
      throw Error(ErrorCode::kInvalidArgument,
                  "prompt token " + std::to_string(i) + " has id " + std::to_string(request.prompt[i]) +
                      "; allowed: 0.." + std::to_string(vocab - 1) +
                      " (the width of the model's logits). The tokenizer may not belong to this model.");
    }
  }
  sampling::validate(request.params, vocab_size_);
  const std::int64_t size = static_cast<std::int64_t>(request.prompt.size());
  if (context_.tokens > 0 && size >= context_.tokens) {
    throw Error(ErrorCode::kContextOverflow, "the prompt has " + std::to_string(size) +
                                                 " tokens and leaves no room for an answer (" + std::to_string(size) +
                                                 "/" + std::to_string(context_.tokens) + "); the limit is " +
                                                 std::to_string(context_.tokens) + " tokens, from " + context_.source +
                                                 ". Shorten the prompt, or use a larger context window.");
  }
  const std::int64_t capacity = scheduler_.budget().capacity();
  if (size >= capacity) {
    throw Error(ErrorCode::kResourceExhausted,
                "the prompt has " + std::to_string(size) + " tokens, but the KV memory budget of " +
                    std::to_string(options_.kv_budget_bytes) + " bytes (" + options_.kv_budget_source + ") holds " +
                    std::to_string(capacity) + " tokens of this model (" +
                    std::to_string(runner_->info().kv_bytes_per_token) +
                    " bytes each). Shorten the prompt or raise the budget.");
  }
}

std::int64_t EngineCore::grant_total_tokens(const Request& request, std::optional<BudgetCap>& cap) const {
  const std::int64_t size = static_cast<std::int64_t>(request.prompt.size());
  std::int64_t total = context_.tokens > 0 ? context_.tokens : size + kDefaultNewTokens;
  if (request.params.max_new_tokens > 0) {
    const std::int64_t asked = request.params.max_new_tokens;
    const std::int64_t room = std::numeric_limits<std::int64_t>::max() - size;
    total = size + std::min(asked, room);
    if (context_.tokens > 0) total = std::min(total, context_.tokens);
  }
  const std::int64_t capacity = scheduler_.budget().capacity();
  if (total > capacity) {
    cap = BudgetCap{.asked = total - size, .granted = capacity - size};
    total = capacity;
  }
  return total;
}

void EngineCore::add(RequestId id, Request request, std::uint64_t seed) {
  auto active = std::make_unique<Active>();
  active->id = id;
  active->max_total_tokens = grant_total_tokens(request, active->budget_cap);
  const std::uint64_t used_seed = request.params.seed.value_or(seed);
  for (int choice = 0; choice < request.params.n; ++choice) {
    const SequenceId sequence{next_sequence_++};
    active->choices.push_back({.id = sequence,
                               .sampler = std::make_unique<sampling::SequenceSampler>(request.params, options_.eos_ids,
                                                                                      vocab_size_, used_seed, choice),
                               .output = SequenceOutput(choice, request.params, options_.eos_ids, tokens_)});
    owners_[sequence] = {active.get(), static_cast<std::size_t>(choice)};
  }
  scheduler_.add(
      {.id = active->choices.front().id, .prompt = request.prompt, .max_total_tokens = active->max_total_tokens});
  active->request = std::move(request);
  ++metrics_.num_requests;
  requests_.emplace(id, std::move(active));
}

void EngineCore::emit(Active& active, Choice& choice, Event event) {
  if (event.finish) {
    choice.finished = true;
    owners_.erase(choice.id);
    if (std::ranges::all_of(active.choices, &Choice::finished)) {
      event.last = true;
      event.usage.prompt_tokens = static_cast<std::int64_t>(active.request.prompt.size());
      for (const Choice& each : active.choices) event.usage.completion_tokens += each.output.num_tokens();
      event.budget_cap = active.budget_cap;
    }
  }
  sink_(active.id, std::move(event));
}

void EngineCore::fail_choice(Active& active, Choice& choice, const Error& error) {
  if (choice.finished) return;
  active.failed = true;
  Event event = choice.output.end(FinishReason::kError);
  event.error = error;
  emit(active, choice, std::move(event));
}

void EngineCore::abort(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  Active& active = *it->second;
  active.aborted = true;
  for (Choice& choice : active.choices) {
    if (choice.finished) continue;
    if (scheduler_.remove(choice.id)) runner_->release(choice.id);
    emit(active, choice, choice.output.end(FinishReason::kAbort));
  }
  erase_finished();
}

void EngineCore::abort_all(const Error& error) {
  for (auto& [id, active] : requests_) {
    active->aborted = true;
    for (Choice& choice : active->choices) {
      if (choice.finished) continue;
      if (scheduler_.remove(choice.id)) runner_->release(choice.id);
      Event event = choice.output.end(FinishReason::kAbort);
      event.error = error;
      emit(*active, choice, std::move(event));
    }
  }
  erase_finished();
}

void EngineCore::erase_finished() {
  std::erase_if(requests_, [&](const auto& entry) {
    const Active& active = *entry.second;
    if (!std::ranges::all_of(active.choices, &Choice::finished)) return false;
    ++metrics_.num_finished_requests;
    if (active.failed) ++metrics_.num_failed_requests;
    if (active.aborted) ++metrics_.num_aborted_requests;
    return true;
  });
}

StepLogits EngineCore::execute_plan(const StepPlan& plan, std::unordered_map<SequenceId, Error>& errors) {
  std::optional<Error> failure;
  try {
    return runner_->execute(plan);
  } catch (const Error& error) {
    failure = error;
  } catch (const std::bad_alloc&) {
    failure = Error(ErrorCode::kResourceExhausted,
                    "out of memory while running the model; use a shorter prompt or fewer requests at once");
  } catch (const std::exception& error) {
    failure = Error(ErrorCode::kInternal, error.what());
  }
  // An interrupt is the fault of no sequence, so there is none to look for.
  if (plan.sequences.size() > 1 && failure->code() != ErrorCode::kAborted) return execute_one_by_one(plan, errors);
  for (const ScheduledSequence& sequence : plan.sequences) errors.emplace(sequence.id, *failure);
  return {};
}

/// A batch failed: one of its sequences is at fault, so each runs alone and only the faulty ones fail.
StepLogits EngineCore::execute_one_by_one(const StepPlan& plan, std::unordered_map<SequenceId, Error>& errors) {
  own_logits_.clear();
  StepLogits logits;
  logits.vocab_size = runner_->info().vocab_size;
  for (const ScheduledSequence& sequence : plan.sequences) {
    std::unordered_map<SequenceId, Error> own;
    const StepLogits part = execute_plan(StepPlan{.sequences = {sequence}}, own);
    errors.merge(own);
    own_logits_.insert(own_logits_.end(), part.values.begin(), part.values.end());
    logits.num_rows += part.num_rows;
  }
  logits.values = own_logits_;
  return logits;
}

void EngineCore::fork_choices(Active& active, std::vector<Row>& rows, std::int64_t logits_row) {
  const SequenceId parent = active.choices.front().id;
  for (std::size_t i = 1; i < active.choices.size(); ++i) {
    Choice& choice = active.choices[i];
    const bool runs = scheduler_.fork(
        parent, {.id = choice.id, .prompt = active.request.prompt, .max_total_tokens = active.max_total_tokens});
    if (!runs) continue;  // queued: it computes the prompt itself when there is room
    try {
      runner_->fork(parent, choice.id, static_cast<std::int64_t>(active.request.prompt.size()));
      rows.push_back({.active = &active, .choice = i, .logits_row = logits_row});
    } catch (const Error& error) {
      if (scheduler_.remove(choice.id)) runner_->release(choice.id);
      fail_choice(active, choice, error);
    }
  }
}

std::vector<EngineCore::Row> EngineCore::rows_of(const StepPlan& plan,
                                                 const std::unordered_map<SequenceId, Error>& errors) {
  std::vector<Row> rows;
  std::int64_t next_row = 0;
  for (const ScheduledSequence& sequence : plan.sequences) {
    if (!sequence.needs_logits || errors.contains(sequence.id)) continue;
    const auto [active, choice] = owners_.at(sequence.id);
    rows.push_back({.active = active, .choice = choice, .logits_row = next_row});
    const bool prompt_done =
        sequence.tokens.size() == active->request.prompt.size() && choice == 0 && active->choices.size() > 1;
    if (prompt_done) fork_choices(*active, rows, next_row);
    ++next_row;
  }
  return rows;
}

void EngineCore::sample_and_emit(const std::vector<Row>& rows, const StepLogits& logits, sched::StepResult& result) {
  const std::size_t vocab = static_cast<std::size_t>(logits.vocab_size);
  // Forked choices share one row of logits, and sampling changes it: all but the first user get a copy.
  std::vector<std::vector<float>> copies;
  copies.reserve(rows.size());
  jobs_.clear();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::span<float> values = logits.row(row.logits_row);
    if (i > 0 && rows[i - 1].logits_row == row.logits_row) {
      values = copies.emplace_back(values.begin(), values.end());
    }
    check(values.size() == vocab, "a logits row has the wrong width");
    Choice& choice = row.active->choices[row.choice];
    jobs_.push_back({.sampler = choice.sampler.get(),
                     .request = &row.active->request,
                     .tokens = scheduler_.tokens(choice.id),
                     .logits = values,
                     .vocab_size = static_cast<std::size_t>(vocab_size_),
                     .token = std::nullopt,
                     .error = std::nullopt,
                     .logprob = std::nullopt});
  }
  row_sampling_.sample_rows(jobs_);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Active& active = *rows[i].active;
    Choice& choice = active.choices[rows[i].choice];
    RowJob& job = jobs_[i];
    if (job.error) {
      fail_choice(active, choice, *job.error);
      result.sequences.push_back({choice.id, std::nullopt, FinishReason::kError});
      continue;
    }
    Event event = choice.output.append(*job.token, std::move(job.logprob), scheduler_.next_token_is_last(choice.id));
    ++metrics_.num_generated_tokens;
    result.sequences.push_back({choice.id, job.token, event.finish});
    emit(active, choice, std::move(event));
  }
}

void EngineCore::step() {
  const double start = seconds_now();
  const StepPlan plan = scheduler_.schedule();
  if (plan.sequences.empty()) return;
  std::unordered_map<SequenceId, Error> errors;
  const StepLogits logits = execute_plan(plan, errors);
  const double executed = seconds_now();
  // Interrupted, because the engine closes: KV is as before, so nothing is lost by leaving the plan undone.
  if (std::ranges::any_of(errors, [](const auto& e) { return e.second.code() == ErrorCode::kAborted; })) return;

  sched::StepResult result;
  for (const ScheduledSequence& sequence : plan.sequences) {
    const auto failed = errors.find(sequence.id);
    if (failed != errors.end()) {
      const auto [active, choice] = owners_.at(sequence.id);
      fail_choice(*active, active->choices[choice], failed->second);
      // Choices that would have been forked from this prompt fail with it.
      if (choice == 0 && sequence.tokens.size() == active->request.prompt.size()) {
        for (Choice& other : active->choices) fail_choice(*active, other, failed->second);
      }
      result.sequences.push_back({sequence.id, std::nullopt, FinishReason::kError});
    } else {
      metrics_.num_prompt_tokens +=
          sequence.needs_logits ? sequence.num_scheduled_tokens - 1 : sequence.num_scheduled_tokens;
      if (!sequence.needs_logits) result.sequences.push_back({sequence.id, std::nullopt, std::nullopt});
    }
  }
  const std::vector<Row> rows = rows_of(plan, errors);
  sample_and_emit(rows, logits, result);
  for (const sched::Scheduler::Finished& finished : scheduler_.update(result)) runner_->release(finished.id);
  erase_finished();

  ++metrics_.num_steps;
  metrics_.sample_seconds += seconds_now() - executed;
  metrics_.step_seconds += seconds_now() - start;
}

Metrics EngineCore::metrics() const {
  Metrics metrics = metrics_;
  const runner::RunnerStats stats = runner_->stats();
  metrics.run_seconds = stats.run_seconds;
  metrics.kv_bytes = stats.kv_bytes;
  metrics.num_running = static_cast<std::int64_t>(scheduler_.num_running());
  metrics.num_waiting = static_cast<std::int64_t>(scheduler_.num_waiting());
  metrics.kv_reserved_tokens = scheduler_.budget().reserved();
  metrics.kv_capacity_tokens = scheduler_.budget().capacity();
  return metrics;
}

}  // namespace genai::engine
