#include "genai/sched/scheduler.h"

#include "genai/base/error.h"
#include "genai/sched/sequence_pool.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace genai::sched {
namespace {

using Phase = SequenceState::Phase;
using States = SequencePool::States;

std::int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

SchedulerConfig checked(SchedulerConfig config) {
  const auto at_least_one = [](const char* name, std::int64_t value) {
    if (value < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(name) + " is " + std::to_string(value) + "; it must be >= 1");
    }
  };
  at_least_one("max_num_seqs", config.max_num_seqs);
  at_least_one("max_num_batched_tokens", config.max_num_batched_tokens);
  at_least_one("max_prefill_tokens_while_decoding", config.max_prefill_tokens_while_decoding);
  if (!(config.priority_ageing_seconds >= 0.0)) {
    throw Error(ErrorCode::kInvalidArgument, "priority_ageing_seconds is " +
                                                 std::to_string(config.priority_ageing_seconds) +
                                                 "; it must be >= 0 (0 = no ageing)");
  }
  return config;
}

}  // namespace

/// Why nobody starves and nothing livelocks. Who runs has a rank: its priority with the ageing that it had when it was
/// admitted. Memory is taken from the lowest rank and latest arrival, and a waiting sequence preempts only ranks below
/// its plain priority; so who was admitted thanks to ageing is not preempted by those that it went before. An admitted
/// sequence holds room for all of its known tokens, so only decoding asks for more: between an admission and the next
/// preemption for memory, tokens are generated, and those are never lost.
struct Scheduler::Impl {
  Impl(SchedulerConfig checked_config, const kv::KvConfig& kv_config)
      : config(checked_config),
        kv(kv_config),
        finds_prefixes(kv_config.prefix_cache && kv_config.shares_blocks),
        max_running(static_cast<std::size_t>(
            std::min(static_cast<std::int64_t>(config.max_num_seqs), config.max_num_batched_tokens))),
        pool(config.priority_ageing_seconds) {}

  const SchedulerConfig config;
  kv::KvManager kv;
  const bool finds_prefixes;
  const std::size_t max_running;  ///< each of them gets at least one token a step

  SequencePool pool;
  States planned;   ///< the open plan's, in plan order, then those forked since; null = ended
  States prefills;  ///< of the step that is being planned
  std::vector<std::unique_ptr<SequenceState>> removed;  ///< while a plan that names them is open
  bool plan_is_open = false;
  std::uint64_t num_computed_prompts = 0;  ///< each made blocks that sequences in the queue may find
  std::int64_t tokens_left = 0;            ///< of the step that is being planned
  std::int64_t prefill_left = 0;           ///< likewise
  bool has_prefill = false;                ///< likewise
  SchedulerStats stats;

  SequenceState& insert(NewSequence sequence, double now);
  void give_back(SequenceState& state);
  void preempt(SequenceState& state);
  void forget(SequenceState& state);
  void reset_scheduled(SequenceState& state);
  void close_plan();
  bool fork(SequenceState& parent, SequenceState& child, double now);

  bool make_room(SequenceState& state, std::int64_t num_tokens);
  std::int64_t spare_tokens(std::size_t num_running) const;
  bool knows_missing(const SequenceState& state) const;
  bool try_start(SequenceState& state, double now);
  bool start(SequenceState& state, double now);
  bool preempt_for(SequenceState& state, double now);
  std::int64_t prefill_share(const SequenceState& state) const;
  void plan(SequenceState& state, std::int64_t num_tokens);
  void plan_prefill(SequenceState& state);
  void plan_decodes();
  void plan_prefills(double now);
  void admit(double now, const SequenceState* before);
  StepPlan make_plan();

  std::optional<FinishReason> advance(SequenceState& state, const SequenceResult& outcome);
};

// Life of a sequence.

SequenceState& Scheduler::Impl::insert(NewSequence sequence, double now) {
  check(!sequence.prompt.empty(), "a sequence has no prompt");
  check(sequence.max_total_tokens > static_cast<std::int64_t>(sequence.prompt.size()),
        "a sequence has no room for a token");
  check(sequence.max_total_tokens <= kv.capacity_tokens(), "a sequence can never fit the KV budget");
  auto state = std::make_unique<SequenceState>();
  state->id = sequence.id;
  state->tokens = std::move(sequence.prompt);
  state->num_prompt_tokens = state->num_tokens();
  state->cache_salt = std::move(sequence.cache_salt);
  state->encoder_inputs = std::move(sequence.encoder_inputs);
  state->max_total_tokens = sequence.max_total_tokens;
  state->priority = sequence.priority;
  state->arrival = now;
  return pool.add(std::move(state));
}

/// Takes its KV and its share of the step that is being planned; it goes back to its place in line.
void Scheduler::Impl::give_back(SequenceState& state) {
  kv.release(state.id);
  if (state.num_scheduled_tokens > 0) {
    std::erase(planned, &state);
    tokens_left += std::exchange(state.num_scheduled_tokens, 0) + state.num_source_tokens();
  }
  state.num_computed_tokens = 0;
  if (state.phase == Phase::kIdle) {
    pool.park(state);
  } else {
    pool.queue(state);
  }
}

void Scheduler::Impl::preempt(SequenceState& state) {
  ++stats.num_preemptions;
  give_back(state);
}

void Scheduler::Impl::forget(SequenceState& state) {
  std::unique_ptr<SequenceState> owned = pool.remove(state);
  if (state.num_scheduled_tokens > 0) {  // the open plan lends its tokens and blocks
    removed.push_back(std::move(owned));
    return;
  }
  kv.release(state.id);
}

/// Its part of the open plan did not run.
void Scheduler::Impl::reset_scheduled(SequenceState& state) {
  state.num_scheduled_tokens = 0;
  state.is_written_early = false;
  if (kv.length(state.id) > state.num_computed_tokens) kv.rewind(state.id, state.num_computed_tokens);
}

void Scheduler::Impl::close_plan() {
  for (SequenceState* state : planned) {
    if (state != nullptr && state->phase != Phase::kRemoved && state->num_scheduled_tokens > 0) reset_scheduled(*state);
  }
  planned.clear();
  for (const auto& state : removed) kv.release(state->id);
  removed.clear();
  plan_is_open = false;
}

bool Scheduler::Impl::fork(SequenceState& parent, SequenceState& child, double now) {
  if (parent.phase != Phase::kRunning && parent.phase != Phase::kIdle) return false;
  if (pool.running().size() >= max_running || pool.waiting().has_before(child, now)) return false;
  const std::int64_t size = child.num_tokens();
  const std::int64_t known = parent.num_computed_tokens + parent.num_scheduled_tokens;
  const std::int64_t shared = std::min(common_prefix(child.tokens, parent.tokens), known);
  // The open plan's logits are those of the child's last token: its token comes with the plan's outcome.
  const bool joins_plan =
      parent.num_scheduled_tokens > 0 && known == parent.num_tokens() && shared == size && size == parent.num_tokens();
  const std::int64_t num_shared = joins_plan ? size : std::min(shared, size - 1);
  if (!kv.could_hold(size - num_shared + kv.config().block_size)) return false;
  if (parent.num_scheduled_tokens > 0 && !parent.is_written_early) {
    kv.written(parent.id, std::span<const TokenId>(parent.tokens).first(static_cast<std::size_t>(known)));
    parent.is_written_early = true;
  }
  if (!kv.fork(parent.id, child.id, num_shared)) return false;
  child.num_computed_tokens = joins_plan ? size - 1 : num_shared;
  if (joins_plan) {
    child.num_scheduled_tokens = 1;
    child.is_written_early = true;
    planned.push_back(&child);
  }
  child.has_started = true;
  pool.run(child, parent.rank + child.priority - parent.priority);
  return true;
}

// Room.

/// Reserves KV for `num_tokens`, preempting others. False when it was itself the one to be preempted.
bool Scheduler::Impl::make_room(SequenceState& state, std::int64_t num_tokens) {
  while (!kv.reserve(state.id, num_tokens)) {
    SequenceState& victim = pool.idle().empty() ? *pool.running().back() : *pool.idle().back();
    preempt(victim);
    if (&victim == &state) return false;
  }
  return true;
}

/// KV that an admission must leave free, so that those that run do not run short at once.
std::int64_t Scheduler::Impl::spare_tokens(std::size_t num_running) const {
  if (num_running == 0) return 0;
  const std::int64_t blocks = std::max(kv.config().num_hot_blocks / 100, static_cast<std::int64_t>(num_running));
  return blocks * kv.config().block_size;
}

/// Whether it still lacks room for `missing_tokens` at least, so that its prefix need not be looked up again.
bool Scheduler::Impl::knows_missing(const SequenceState& state) const {
  return state.missing_tokens > 0 && state.missing_since == num_computed_prompts;
}

/// Moves a waiting sequence to the running ones if KV has room for all of its known tokens.
bool Scheduler::Impl::try_start(SequenceState& state, double now) {
  const std::int64_t size = state.num_tokens();
  const std::int64_t spare = spare_tokens(pool.running().size());
  if (!finds_prefixes && !kv.could_hold(size + spare)) return false;
  if (knows_missing(state) && !kv.could_hold(state.missing_tokens + spare)) return false;
  const std::int64_t num_cached = kv.start(state.id, state.tokens, state.cache_salt);
  state.missing_tokens = size - num_cached;
  state.missing_since = num_computed_prompts;
  if (!kv.could_hold(state.missing_tokens + spare) || !kv.reserve(state.id, size)) {
    kv.release(state.id);
    return false;
  }
  state.num_computed_tokens = num_cached;
  state.missing_tokens = 0;
  if (!std::exchange(state.has_started, true)) state.num_cached_tokens = num_cached;
  pool.run(state, std::floor(pool.waiting().effective_priority(state, now)));
  return true;
}

bool Scheduler::Impl::start(SequenceState& state, double now) {
  while (!try_start(state, now)) {
    if (!pool.running().empty()) return false;
    check(!pool.idle().empty(), "a sequence does not fit the KV memory although it is alone");
    preempt(*pool.idle().back());
  }
  return true;
}

/// Starts a waiting sequence in the place of those of lower rank. False when they hold too little; what they share with
/// others may show that only after some were preempted.
bool Scheduler::Impl::preempt_for(SequenceState& state, double now) {
  const auto is_victim = [&](const SequenceState* other) { return other->rank < state.priority; };
  const auto lowest = [&](const States& some) {
    return !some.empty() && is_victim(some.back()) ? some.back() : nullptr;
  };
  const auto next_victim = [&] {
    SequenceState* resting = pool.running().size() < max_running ? lowest(pool.idle()) : nullptr;
    return resting != nullptr ? resting : lowest(pool.running());
  };
  SequenceState* victim = next_victim();
  if (victim == nullptr) return false;
  std::int64_t missing = knows_missing(state) ? state.missing_tokens : state.num_tokens();
  for (const States* some : {&pool.running(), &pool.idle()}) {
    for (const SequenceState* other : *some) {
      if (is_victim(other)) missing -= std::ssize(kv.block_table(other->id)) * kv.config().block_size;
    }
  }
  const auto num_victims = static_cast<std::size_t>(std::ranges::count_if(pool.running(), is_victim));
  missing += spare_tokens(pool.running().size() - num_victims);
  if (missing > 0 && !kv.could_hold(missing)) return false;
  for (; victim != nullptr; victim = next_victim()) {
    preempt(*victim);
    if (pool.running().size() < max_running && start(state, now)) return true;
  }
  return false;
}

// Plans.

/// Tokens that a prefill may run now; 0 = none. A source is encoded whole, with one token at least.
std::int64_t Scheduler::Impl::prefill_share(const SequenceState& state) const {
  const std::int64_t source = state.num_source_tokens();
  const std::int64_t remaining = state.remaining();
  std::int64_t left = std::min(tokens_left, prefill_left);
  if (source > 0) {
    if (left <= 0 || (left <= source && has_prefill)) return 0;
    left = std::max<std::int64_t>(1, left - source);
  }
  if (config.can_chunk_prefill) return std::max<std::int64_t>(0, std::min(left, remaining));
  if (left >= remaining) return remaining;
  return left > 0 && !has_prefill ? remaining : 0;
}

void Scheduler::Impl::plan(SequenceState& state, std::int64_t num_tokens) {
  state.num_scheduled_tokens = num_tokens;
  tokens_left -= num_tokens + state.num_source_tokens();
  planned.push_back(&state);
}

void Scheduler::Impl::plan_prefill(SequenceState& state) {
  const std::int64_t share = prefill_share(state);
  if (share == 0 || !make_room(state, state.num_computed_tokens + share)) return;
  plan(state, share);
  prefill_left -= share + state.num_source_tokens();
  has_prefill = true;
}

void Scheduler::Impl::plan_decodes() {
  // Preempting takes from the end, so whoever stands before `i` stays.
  for (std::size_t i = 0; i < pool.running().size() && planned.size() < max_running; ++i) {
    SequenceState& state = *pool.running()[i];
    if (state.is_decoding() && make_room(state, state.num_tokens())) plan(state, 1);
  }
}

void Scheduler::Impl::plan_prefills(double now) {
  prefills.clear();
  for (SequenceState* state : pool.running()) {
    if (state->num_scheduled_tokens == 0 && !state->is_decoding()) prefills.push_back(state);
  }
  for (SequenceState* state : prefills) {
    admit(now, state);
    if (state->phase == Phase::kRunning && planned.size() < max_running) plan_prefill(*state);
  }
  admit(now, nullptr);
}

/// Admits waiting sequences, in order, those of higher priority in the place of running ones if need be. before: only
/// those that have a higher priority than this running one.
void Scheduler::Impl::admit(double now, const SequenceState* before) {
  while (!pool.waiting().empty()) {
    SequenceState* next = pool.waiting().head(now);
    if (before != nullptr && (before->phase != Phase::kRunning || next->priority <= before->rank)) return;
    const bool has_place = pool.running().size() < max_running;
    if (has_place && prefill_share(*next) == 0) return;
    if (!has_place || !start(*next, now)) {
      next = pool.waiting().most_urgent();
      if (!preempt_for(*next, now)) return;
    }
    if (planned.size() < max_running) plan_prefill(*next);
  }
}

StepPlan Scheduler::Impl::make_plan() {
  StepPlan step;
  step.sequences.reserve(planned.size());
  for (const SequenceState* state : planned) {
    step.sequences.push_back({.id = state->id,
                              .tokens = state->tokens,
                              .num_computed_tokens = state->num_computed_tokens,
                              .num_scheduled_tokens = state->num_scheduled_tokens,
                              .num_prompt_tokens = state->num_prompt_tokens,
                              .needs_logits = state->num_scheduled_tokens == state->remaining(),
                              .block_table = kv.block_table(state->id),
                              .encoder_inputs = state->encoder_inputs.get()});
  }
  plan_is_open = !planned.empty();
  return step;
}

/// Applies one outcome; the reason if the sequence is finished.
std::optional<FinishReason> Scheduler::Impl::advance(SequenceState& state, const SequenceResult& outcome) {
  // What did not run to its end may have left anything in its blocks.
  const bool ran = outcome.finish != FinishReason::kError && outcome.finish != FinishReason::kAbort;
  const std::int64_t num_run = std::exchange(state.num_scheduled_tokens, 0);
  if (num_run > 0 && ran) {
    state.num_computed_tokens += num_run;
    if (!state.is_written_early) {
      kv.written(state.id,
                 std::span<const TokenId>(state.tokens).first(static_cast<std::size_t>(state.num_computed_tokens)));
    }
    if (num_run > 1 && state.remaining() == 0) ++num_computed_prompts;
  }
  state.is_written_early = false;
  if (outcome.token) {
    check(num_run > 0 && (!ran || state.remaining() == 0), "a token was sampled before the known ones were computed");
    state.tokens.push_back(*outcome.token);
    state.tokens.insert(state.tokens.end(), outcome.forced.begin(), outcome.forced.end());
    check(state.num_tokens() <= state.max_total_tokens, "tokens were forced beyond max_total_tokens");
    if (!outcome.finish && state.num_tokens() >= state.max_total_tokens) return FinishReason::kLength;
  }
  return outcome.finish;
}

// The interface.

Scheduler::Scheduler(SchedulerConfig config, kv::KvConfig kv) : impl_(std::make_unique<Impl>(checked(config), kv)) {}

Scheduler::~Scheduler() = default;

void Scheduler::add(NewSequence sequence, double now) {
  impl_->pool.queue(impl_->insert(std::move(sequence), now));
}

bool Scheduler::fork(SequenceId parent, NewSequence child, double now) {
  SequenceState& source = impl_->pool.at(parent);
  SequenceState& state = impl_->insert(std::move(child), now);
  state.order = source.order;
  state.arrival = source.arrival;
  state.num_cached_tokens = source.num_cached_tokens;
  state.encoder_inputs = source.encoder_inputs;
  state.num_prompt_tokens = std::min(state.num_prompt_tokens, source.num_prompt_tokens);
  if (impl_->fork(source, state, now)) return true;
  impl_->pool.queue(state);
  return false;
}

bool Scheduler::remove(SequenceId id) {
  SequenceState* state = impl_->pool.find(id);
  if (state == nullptr) return false;
  impl_->forget(*state);
  return true;
}

bool Scheduler::preempt(SequenceId id) {
  check(!impl_->plan_is_open, "a sequence was preempted while a plan was open");
  SequenceState* state = impl_->pool.find(id);
  if (state == nullptr || (state->phase != Phase::kRunning && state->phase != Phase::kIdle)) return false;
  impl_->preempt(*state);
  return true;
}

StepPlan Scheduler::schedule(double now) {
  Impl& impl = *impl_;
  check(!impl.plan_is_open, "a step was planned while a plan was open");
  impl.planned.clear();
  impl.tokens_left = impl.config.max_num_batched_tokens;
  impl.has_prefill = false;
  impl.plan_decodes();
  impl.prefill_left =
      impl.planned.empty() ? std::numeric_limits<std::int64_t>::max() : impl.config.max_prefill_tokens_while_decoding;
  impl.plan_prefills(now);
  return impl.make_plan();
}

void Scheduler::abandon() {
  impl_->close_plan();
}

std::vector<Scheduler::Finished> Scheduler::update(const StepResult& result) {
  Impl& impl = *impl_;
  std::vector<Finished> finished;
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    const SequenceResult& outcome = result.sequences[i];
    const bool is_in_place = i < impl.planned.size() && impl.planned[i] != nullptr && impl.planned[i]->id == outcome.id;
    SequenceState* state = is_in_place ? impl.planned[i] : impl.pool.find(outcome.id);
    if (state == nullptr || state->phase == Phase::kRemoved) continue;
    const std::optional<FinishReason> reason = impl.advance(*state, outcome);
    if (reason) {
      finished.push_back({outcome.id, *reason});
      std::ranges::replace(impl.planned, state, static_cast<SequenceState*>(nullptr));
      impl.forget(*state);
    } else if (state->phase == Phase::kRunning && state->remaining() == 0) {
      impl.pool.rest(*state);
    }
  }
  impl.close_plan();
  return finished;
}

void Scheduler::append(SequenceId id, TokenId token) {
  SequenceState& state = impl_->pool.at(id);
  check(state.phase == Phase::kIdle || state.phase == Phase::kParked,
        "a token was appended to a sequence that computes");
  check(state.num_tokens() < state.max_total_tokens, "a token was appended beyond max_total_tokens");
  state.tokens.push_back(token);
  if (state.phase == Phase::kIdle) {
    impl_->pool.run(state, state.rank);
  } else {
    impl_->pool.queue(state);
  }
}

std::vector<KvOp> Scheduler::take_kv_ops() {
  return impl_->kv.take_ops();
}

void Scheduler::kv_failed(const KvOp& op) {
  impl_->close_plan();
  for (const SequenceId id : impl_->kv.move_failed(op)) impl_->give_back(impl_->pool.at(id));
}

const std::vector<TokenId>& Scheduler::tokens(SequenceId id) const {
  return impl_->pool.at(id).tokens;
}

bool Scheduler::next_token_is_last(SequenceId id) const {
  const SequenceState& state = impl_->pool.at(id);
  return state.num_tokens() + 1 >= state.max_total_tokens;
}

std::int64_t Scheduler::num_cached_tokens(SequenceId id) const {
  return impl_->pool.at(id).num_cached_tokens;
}

std::size_t Scheduler::num_running() const {
  return impl_->pool.running().size();
}

std::size_t Scheduler::num_waiting() const {
  return impl_->pool.waiting().size();
}

SchedulerStats Scheduler::stats() const {
  return impl_->stats;
}

kv::KvManager& Scheduler::kv() {
  return impl_->kv;
}

const kv::KvManager& Scheduler::kv() const {
  return impl_->kv;
}

}  // namespace genai::sched
