#include "genai/sched/sequence_pool.h"

#include "genai/base/error.h"

#include <algorithm>
#include <utility>

namespace genai::sched {
namespace {

using Phase = SequenceState::Phase;

bool goes_first(const SequenceState* a, const SequenceState* b) {
  return outranks(*a, *b);
}

void insert_by_rank(SequencePool::States& states, SequenceState& state) {
  states.insert(std::upper_bound(states.begin(), states.end(), &state, goes_first), &state);
}

}  // namespace

SequenceState& SequencePool::add(std::unique_ptr<SequenceState> state) {
  const SequenceId id = state->id;
  state->order = next_order_++;
  state->phase = Phase::kNew;
  const auto [it, is_new] = states_.emplace(id, std::move(state));
  check(is_new, "a sequence was added twice");
  return *it->second;
}

SequenceState* SequencePool::find(SequenceId id) const {
  const auto it = states_.find(id);
  return it == states_.end() ? nullptr : it->second.get();
}

SequenceState& SequencePool::at(SequenceId id) const {
  SequenceState* state = find(id);
  check(state != nullptr, "a sequence is unknown to the scheduler");
  return *state;
}

std::unique_ptr<SequenceState> SequencePool::remove(SequenceState& state) {
  leave(state);
  state.phase = Phase::kRemoved;
  return std::move(states_.extract(state.id).mapped());
}

void SequencePool::queue(SequenceState& state) {
  leave(state);
  state.phase = Phase::kWaiting;
  waiting_.push(state);
}

void SequencePool::run(SequenceState& state, double rank) {
  leave(state);
  state.phase = Phase::kRunning;
  state.rank = rank;
  bool raised = false;
  for (SequenceState* other : running_) {
    if (other->priority == state.priority && other->order < state.order && other->rank < rank) {
      other->rank = rank;
      raised = true;
    }
  }
  if (raised) std::ranges::sort(running_, goes_first);
  insert_by_rank(running_, state);
}

void SequencePool::rest(SequenceState& state) {
  leave(state);
  state.phase = Phase::kIdle;
  insert_by_rank(idle_, state);
}

void SequencePool::park(SequenceState& state) {
  leave(state);
  state.phase = Phase::kParked;
}

void SequencePool::leave(SequenceState& state) {
  switch (state.phase) {
    case Phase::kWaiting:
      waiting_.erase(state);
      break;
    case Phase::kRunning:
      std::erase(running_, &state);
      break;
    case Phase::kIdle:
      std::erase(idle_, &state);
      break;
    case Phase::kNew:
    case Phase::kParked:
    case Phase::kRemoved:
      break;
  }
}

}  // namespace genai::sched
