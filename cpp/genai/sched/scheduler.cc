#include "genai/sched/scheduler.h"

#include "genai/base/error.h"

#include <algorithm>
#include <utility>

namespace genai::sched {

Scheduler::Scheduler(SchedulerConfig config, kv::TokenBudget budget) : config_(config), budget_(std::move(budget)) {
  if (config_.max_num_seqs < 1 || config_.max_num_batched_tokens < 1 || config_.max_prefill_tokens_while_decoding < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "max_num_seqs, max_num_batched_tokens and max_prefill_tokens_while_decoding must be >= 1");
  }
}

void Scheduler::add(NewSequence sequence) {
  check(!sequence.prompt.empty(), "a sequence has no prompt");
  check(sequence.max_total_tokens > static_cast<std::int64_t>(sequence.prompt.size()),
        "a sequence has no room for a token");
  check(sequence.max_total_tokens <= budget_.capacity(), "a sequence can never fit the KV budget");
  State state;
  state.tokens = std::move(sequence.prompt);
  state.max_total_tokens = sequence.max_total_tokens;
  check(states_.emplace(sequence.id, std::move(state)).second, "a sequence was added twice");
  waiting_.push_back(sequence.id);
}

bool Scheduler::fork(SequenceId parent, NewSequence child) {
  const std::int64_t num_prompt = static_cast<std::int64_t>(child.prompt.size());
  const State& source = states_.at(parent);
  const SequenceId id = child.id;
  add(std::move(child));
  // Only a child with nothing before it in the queue may start; else it would overtake.
  const bool room = waiting_.size() == 1 && running_.size() < static_cast<std::size_t>(config_.max_num_seqs);
  State& state = states_.at(id);
  if (!room || source.num_computed_tokens + source.num_scheduled_tokens < num_prompt ||
      !budget_.reserve(id, state.max_total_tokens)) {
    return false;
  }
  // The last prompt token counts as "scheduled in the plan that is out", so that update() can append the child's token.
  state.num_computed_tokens = num_prompt - 1;
  state.num_scheduled_tokens = 1;
  waiting_.pop_back();
  running_.push_back(id);
  return true;
}

bool Scheduler::remove(SequenceId id) {
  if (states_.erase(id) == 0) return false;
  budget_.release(id);
  const bool ran = std::erase(running_, id) > 0;
  if (!ran) std::erase(waiting_, id);
  return ran;
}

void Scheduler::put(StepPlan& plan, SequenceId id, State& state, std::int64_t num_tokens) const {
  state.num_scheduled_tokens = num_tokens;
  plan.sequences.push_back({.id = id,
                            .tokens = state.tokens,
                            .num_computed_tokens = state.num_computed_tokens,
                            .num_scheduled_tokens = num_tokens,
                            .needs_logits = num_tokens == state.remaining()});
}

bool Scheduler::admit_head() {
  if (waiting_.empty() || running_.size() >= static_cast<std::size_t>(config_.max_num_seqs)) return false;
  const SequenceId id = waiting_.front();
  if (!budget_.reserve(id, states_.at(id).max_total_tokens)) return false;
  waiting_.pop_front();
  running_.push_back(id);
  return true;
}

std::int64_t Scheduler::prefill_share(const State& state, std::int64_t left) const {
  return config_.can_chunk_prefill ? std::min(left, state.remaining()) : state.remaining();
}

StepPlan Scheduler::schedule() {
  StepPlan plan;
  std::int64_t left = config_.max_num_batched_tokens;
  for (const SequenceId id : running_) {
    State& state = states_.at(id);
    if (left > 0 && state.remaining() == 1) {
      put(plan, id, state, 1);
      --left;
    }
  }
  if (!plan.sequences.empty()) left = std::min(left, config_.max_prefill_tokens_while_decoding);
  for (const SequenceId id : running_) {
    State& state = states_.at(id);
    if (left <= 0) break;
    if (state.remaining() > 1) {
      const std::int64_t share = prefill_share(state, left);
      put(plan, id, state, share);
      left -= share;
    }
  }
  while (left > 0 && admit_head()) {
    State& state = states_.at(running_.back());
    const std::int64_t share = prefill_share(state, left);
    put(plan, running_.back(), state, share);
    left -= share;
  }
  return plan;
}

std::vector<Scheduler::Finished> Scheduler::update(const StepResult& result) {
  std::vector<Finished> finished;
  for (const SequenceResult& outcome : result.sequences) {
    const auto it = states_.find(outcome.id);
    if (it == states_.end()) continue;  // removed while the step ran
    State& state = it->second;
    state.num_computed_tokens += std::exchange(state.num_scheduled_tokens, 0);
    std::optional<FinishReason> reason = outcome.finish;
    if (outcome.token) {
      check(state.remaining() == 0, "a token was sampled before the known ones were computed");
      state.tokens.push_back(*outcome.token);
      if (!reason && static_cast<std::int64_t>(state.tokens.size()) >= state.max_total_tokens) {
        reason = FinishReason::kLength;
      }
    }
    if (reason) {
      finished.push_back({outcome.id, *reason});
      remove(outcome.id);
    }
  }
  return finished;
}

const std::vector<TokenId>& Scheduler::tokens(SequenceId id) const {
  return states_.at(id).tokens;
}

bool Scheduler::next_token_is_last(SequenceId id) const {
  const State& state = states_.at(id);
  return static_cast<std::int64_t>(state.tokens.size()) + 1 >= state.max_total_tokens;
}

}  // namespace genai::sched
