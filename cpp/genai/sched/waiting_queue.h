#pragma once

#include "genai/sched/sequence_state.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace genai::sched {

/// Sequences that wait to run: one line for each priority, each in order of arrival. Who waits gains one priority for
/// each `ageing_seconds` since its arrival, so the head of a line is always the one of its line that gained most. Owned
/// by a Scheduler, which also owns the states and keeps them alive while they are here. One thread.
class WaitingQueue {
 public:
  /// ageing_seconds: 0 = no ageing.
  explicit WaitingQueue(double ageing_seconds) : ageing_seconds_(ageing_seconds) {}

  /// Puts `state` at the place in its line that its arrival gives it. Requires: it is not here. Cost: O(log n).
  void push(SequenceState& state);
  /// Requires: `state` is here. Cost: O(log n).
  void erase(const SequenceState& state);

  /// The next one to run, null when nobody waits: highest effective priority, then higher priority, then arrival.
  /// Cost: O(different priorities).
  SequenceState* head(double now) const;
  /// The first of the highest priority without ageing; null when nobody waits.
  SequenceState* most_urgent() const;
  /// Whether somebody here goes before `state`, which is not here. Cost: as head().
  bool has_before(const SequenceState& state, double now) const;

  /// Priority of `state` with ageing.
  double effective_priority(const SequenceState& state, double now) const;

  bool empty() const { return num_waiting_ == 0; }
  std::size_t size() const { return num_waiting_; }

 private:
  using Place = std::pair<std::uint64_t, SequenceId>;
  using Line = std::map<Place, SequenceState*>;

  bool goes_before(const SequenceState& a, const SequenceState& b, double now) const;

  double ageing_seconds_;
  std::map<int, Line, std::greater<>> lines_;  ///< by priority; none is empty
  std::size_t num_waiting_ = 0;
};

}  // namespace genai::sched
