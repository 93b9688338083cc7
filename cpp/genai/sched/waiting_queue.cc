#include "genai/sched/waiting_queue.h"

#include "genai/base/error.h"

namespace genai::sched {

void WaitingQueue::push(SequenceState& state) {
  check(lines_[state.priority].emplace(Place{state.order, state.id}, &state).second, "a sequence was queued twice");
  ++num_waiting_;
}

void WaitingQueue::erase(const SequenceState& state) {
  const auto line = lines_.find(state.priority);
  check(line != lines_.end() && line->second.erase(Place{state.order, state.id}) == 1, "a sequence was not queued");
  if (line->second.empty()) lines_.erase(line);
  --num_waiting_;
}

SequenceState* WaitingQueue::head(double now) const {
  SequenceState* best = nullptr;
  for (const auto& [priority, line] : lines_) {
    SequenceState* first = line.begin()->second;
    if (best == nullptr || goes_before(*first, *best, now)) best = first;
  }
  return best;
}

SequenceState* WaitingQueue::most_urgent() const {
  return lines_.empty() ? nullptr : lines_.begin()->second.begin()->second;
}

bool WaitingQueue::has_before(const SequenceState& state, double now) const {
  const SequenceState* first = head(now);
  return first != nullptr && goes_before(*first, state, now);
}

double WaitingQueue::effective_priority(const SequenceState& state, double now) const {
  const double gained = ageing_seconds_ > 0.0 ? (now - state.arrival) / ageing_seconds_ : 0.0;
  return state.priority + gained;
}

bool WaitingQueue::goes_before(const SequenceState& a, const SequenceState& b, double now) const {
  if (a.priority != b.priority) {
    const double effective_a = effective_priority(a, now);
    const double effective_b = effective_priority(b, now);
    if (effective_a != effective_b) return effective_a > effective_b;
    return a.priority > b.priority;
  }
  return Place{a.order, a.id} < Place{b.order, b.id};
}

}  // namespace genai::sched
