#include "genai/engine/engine_core.h"

#include "genai/engine/kv_salt.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

namespace genai::engine {
namespace {

constexpr std::int64_t kMaxBlocks = 1 << 20;  // of a tier: bookkeeping of more would cost more than they could be worth

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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

kv::KvConfig kv_config(const runner::RunnerInfo& info, const EngineOptions& options) {
  return {.block_size = info.block_size,
          .num_hot_blocks = std::min(info.num_hot_blocks, kMaxBlocks),
          .num_warm_blocks = std::min(info.num_warm_blocks, kMaxBlocks),
          .num_cold_blocks = std::min(info.num_cold_blocks, kMaxBlocks),
          .prefix_cache = options.prefix_cache && info.shares_blocks,
          .shares_blocks = info.shares_blocks};
}

Error expired_error(double timeout_seconds) {
  std::ostringstream seconds;
  seconds << timeout_seconds;
  return {ErrorCode::kDeadlineExceeded, "the request did not end within its timeout of " + seconds.str() +
                                            " seconds; what was generated so far is valid. Allow more time, ask for "
                                            "fewer tokens, or run fewer requests at once."};
}

}  // namespace

EngineCore::EngineCore(std::unique_ptr<runner::ModelRunner> runner, std::shared_ptr<const TokenTable> tokens,
                       EngineOptions options, Sink sink, Clock clock)
    : runner_(std::move(runner)),
      tokens_(std::move(tokens)),
      options_(std::move(options)),
      tracer_(options_.tracer ? options_.tracer : std::make_shared<Tracer>()),
      trace_(tracer_->thread(TraceThread::kEngine)),
      request_trace_(trace_),
      sink_(std::move(sink)),
      clock_(clock ? std::move(clock) : Clock(steady_seconds)),
      vocab_size_(sampled_vocab(runner_->info(), *tokens_)),
      scheduler_(scheduler_config(runner_->info(), options_.scheduler), kv_config(runner_->info(), options_)),
      limits_(runner_->info(), options_, scheduler_.kv().capacity_tokens(), vocab_size_),
      cost_meter_(runner_->info(), runner_->block_bytes()) {
  scheduler_.kv().set_costs(cost_meter_.costs({}));
}

void EngineCore::start_trace(TraceLevel level, std::size_t max_events, std::string ops_folder) {
  tracer_->start(level, max_events, std::move(ops_folder));
  for (const auto& [id, active] : requests_) request_trace_.open(*active);
}

void EngineCore::add(RequestId id, Request request, std::uint64_t seed, double now, std::optional<double> submitted) {
  auto active = std::make_unique<ActiveRequest>();
  active->id = id;
  active->max_total_tokens = limits_.grant_total_tokens(request, active->budget_cap);
  active->request = std::move(request);
  active->request.cache_salt = kv_salt(active->request.cache_salt, active->request.adapters);
  const Request& own = active->request;
  active->submitted = submitted.value_or(now);
  if (own.timeout_seconds) active->deadline = active->submitted + *own.timeout_seconds;
  const std::uint64_t used_seed = own.params.seed.value_or(seed);
  if (own.params.num_beams > 1) {
    add_beams(*active, used_seed);
  } else {
    add_choices(*active, used_seed);
  }
  scheduler_.add({.id = active->beams ? active->beams->id(0) : active->choices.front().id,
                  .prompt = own.prompt,
                  .max_total_tokens = active->max_total_tokens,
                  .priority = own.priority,
                  .cache_salt = own.cache_salt,
                  .encoder_inputs = own.encoder_inputs},
                 now);
  if (active->deadline) deadlines_.emplace(*active->deadline, id);
  ++metrics_.num_requests;
  request_trace_.queued(*active);
  requests_.emplace(id, std::move(active));
}

void EngineCore::add_choices(ActiveRequest& active, std::uint64_t seed) {
  const SamplingParams& params = active.request.params;
  SamplingParams output_params = params;
  if (active.request.grammar) output_params.ignore_eos = false;  // EOS comes only where the grammar may end
  for (int choice = 0; choice < params.n; ++choice) {
    const SequenceId sequence = new_sequence();
    active.choices.push_back(
        {.id = sequence,
         .output = SequenceOutput(choice, output_params, options_.eos_ids, tokens_),
         .sampler = std::make_unique<sampling::SequenceSampler>(params, options_.eos_ids, vocab_size_, seed, choice)});
    if (active.request.grammar) {
      active.choices.back().grammar = std::make_unique<GrammarState>(*active.request.grammar, grammar_facts());
    }
    owners_[sequence] = {&active, static_cast<std::size_t>(choice)};
  }
}

GrammarState::Facts EngineCore::grammar_facts() {
  if (!closing_) closing_.emplace(*tokens_, vocab_size_);
  return {.num_tokens = std::ssize(tokens_->bytes), .closing = &*closing_, .eos_ids = options_.eos_ids};
}

void EngineCore::add_beams(ActiveRequest& active, std::uint64_t seed) {
  const SamplingParams& params = active.request.params;
  for (int choice = 0; choice < params.n; ++choice) {
    active.choices.push_back(
        {.id = {}, .output = SequenceOutput(choice, params, options_.eos_ids, tokens_), .sampler = nullptr});
  }
  active.choices.front().sampler =
      std::make_unique<sampling::SequenceSampler>(params, options_.eos_ids, vocab_size_, seed, 0);
  active.beams =
      std::make_unique<BeamGroup>(active.request, options_.eos_ids, tokens_, active.max_total_tokens, new_sequence());
  own_beams(active);
}

void EngineCore::own_beams(ActiveRequest& active) {
  for (std::size_t i = 0; i < active.beams->size(); ++i) owners_[active.beams->id(i)] = {&active, i};
}

void EngineCore::emit(ActiveRequest& active, ActiveChoice& choice, Event event) {
  const bool is_first_token = !active.first_token && !event.tokens.empty();
  if (is_first_token) active.first_token = step_now_ + (clock_() - step_start_);
  if (event.finish) {
    choice.finished = true;
    owners_.erase(choice.id);
    if (++active.num_finished == active.choices.size()) {
      event.last = true;
      const Request& request = active.request;
      event.usage.prompt_tokens =
          request.encoder_inputs ? request.encoder_inputs->num_tokens : std::ssize(request.prompt);
      for (const ActiveChoice& each : active.choices) event.usage.completion_tokens += each.output.num_tokens();
      event.usage.cached_tokens = active.num_cached_tokens;
      event.budget_cap = active.budget_cap;
      if (active.started) {
        const double queued = std::max(*active.started - active.submitted, 0.0);
        event.times = {.queued = queued, .prefill = active.first_token.value_or(*active.started) - *active.started};
      }
      ended_.push_back(active.id);
    }
  }
  request_trace_.emitted(active, event, is_first_token);
  sink_(active.id, std::move(event));
}

void EngineCore::fail_choice(ActiveRequest& active, ActiveChoice& choice, const Error& error) {
  if (choice.finished) return;
  active.failed = true;
  Event event = choice.output.end(FinishReason::kError);
  event.error = error;
  emit(active, choice, std::move(event));
}

/// Ends the choices that have not ended yet. Requires: no plan is open.
void EngineCore::end_request(ActiveRequest& active, FinishReason reason, const std::optional<Error>& error) {
  if (active.num_finished == active.choices.size()) return;
  if (active.beams) {
    for (std::size_t i = 0; i < active.beams->size(); ++i) owners_.erase(active.beams->id(i));
    active.beams->remove_sequences(scheduler_);
  }
  for (std::size_t i = 0; i < active.choices.size(); ++i) {
    ActiveChoice& choice = active.choices[i];
    if (choice.finished) continue;
    scheduler_.remove(choice.id);
    Event event = active.beams ? active.beams->given_up(i, choice.output, reason) : choice.output.end(reason);
    event.error = error;
    emit(active, choice, std::move(event));
  }
}

void EngineCore::abort(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  it->second->aborted = true;
  end_request(*it->second, FinishReason::kAbort, std::nullopt);
  erase_ended();
}

void EngineCore::abort_all(const Error& error) {
  for (auto& [id, active] : requests_) {
    active->aborted = true;
    end_request(*active, FinishReason::kAbort, error);
  }
  erase_ended();
}

void EngineCore::expire(double now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const RequestId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    ActiveRequest& active = *requests_.at(id);
    active.failed = true;
    active.expired = true;
    end_request(active, FinishReason::kError, expired_error(*active.request.timeout_seconds));
  }
}

void EngineCore::erase_ended() {
  for (const RequestId id : ended_) {
    const auto it = requests_.find(id);
    const ActiveRequest& active = *it->second;
    ++metrics_.num_finished_requests;
    if (active.failed) ++metrics_.num_failed_requests;
    if (active.aborted) ++metrics_.num_aborted_requests;
    if (active.expired) ++metrics_.num_expired_requests;
    if (active.deadline) deadlines_.erase({*active.deadline, id});
    requests_.erase(it);
  }
  ended_.clear();
}

bool EngineCore::preempt(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return false;
  const ActiveRequest& active = *it->second;
  bool any = false;
  if (active.beams) {
    for (std::size_t i = 0; i < active.beams->size(); ++i) any = scheduler_.preempt(active.beams->id(i)) || any;
  }
  for (const ActiveChoice& choice : active.choices) {
    if (!choice.finished && !active.beams) any = scheduler_.preempt(choice.id) || any;
  }
  return any;
}

KvBytes EngineCore::export_kv(std::span<const TokenId> tokens, std::string_view salt) {
  apply_kv_ops();
  return engine::export_kv(scheduler_.kv(), *runner_, tokens, salt);
}

std::int64_t EngineCore::import_kv(std::span<const TokenId> tokens, std::string_view salt,
                                   std::span<const std::byte> bytes) {
  apply_kv_ops();
  return engine::import_kv(scheduler_.kv(), *runner_, tokens, salt, bytes, [&] { return apply_kv_ops(); });
}

void EngineCore::clear_prefix_cache() {
  scheduler_.kv().clear_cache();
  apply_kv_ops();
}

Metrics EngineCore::metrics() const {
  Metrics metrics = metrics_;
  const runner::RunnerStats run = runner_->stats();
  metrics.run_seconds = run.run_seconds;
  metrics.move_seconds = run.move_seconds;
  metrics.kv_bytes = run.kv_bytes;
  metrics.num_running = static_cast<std::int64_t>(scheduler_.num_running());
  metrics.num_waiting = static_cast<std::int64_t>(scheduler_.num_waiting());
  metrics.num_preemptions = scheduler_.stats().num_preemptions;
  const kv::KvManager& kv = scheduler_.kv();
  const kv::KvStats stats = kv.stats();
  metrics.prefix_queried_tokens = stats.prefix_queried_tokens;
  metrics.prefix_hit_tokens = stats.prefix_hit_tokens;
  metrics.kv_capacity_tokens = kv.capacity_tokens();
  metrics.kv_hot_blocks = kv.config().num_hot_blocks;
  metrics.kv_warm_blocks = kv.config().num_warm_blocks;
  metrics.kv_cold_blocks = kv.config().num_cold_blocks;
  metrics.kv_hot_used_blocks = stats.hot_used;
  metrics.kv_hot_cached_blocks = stats.hot_cached;
  metrics.kv_warm_used_blocks = stats.warm_used;
  metrics.kv_cold_used_blocks = stats.cold_used;
  metrics.kv_evicted_blocks = stats.evicted_blocks;
  metrics.kv_swapped_out_blocks = stats.swapped_out_blocks;
  metrics.kv_swapped_in_blocks = stats.swapped_in_blocks;
  metrics.kv_copied_blocks = stats.copied_blocks;
  metrics.kv_failed_moves = stats.failed_moves;
  metrics.kv_allocated_blocks = stats.allocated_blocks;
  metrics.kv_freed_blocks = stats.freed_blocks;
  metrics.kv_failed_reserves = stats.failed_reserves;
  metrics.kv_cold_writes = stats.cold_writes;
  metrics.kv_cold_reads = stats.cold_reads;
  metrics.session_bytes = run.session_bytes;
  return metrics;
}

}  // namespace genai::engine
