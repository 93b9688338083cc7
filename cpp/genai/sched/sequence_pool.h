#pragma once

#include "genai/base/ids.h"
#include "genai/sched/sequence_state.h"
#include "genai/sched/waiting_queue.h"

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

namespace genai::sched {

/// All sequences of a scheduler, each in the list of its phase. Knows nothing of KV or plans. One thread.
class SequencePool {
 public:
  using States = std::vector<SequenceState*>;

  /// ageing_seconds: as WaitingQueue has it.
  explicit SequencePool(double ageing_seconds) : waiting_(ageing_seconds) {}

  /// Takes a new sequence and gives it the next place in line; queue() or run() has to follow. Throws kInternal if its
  /// id is known.
  SequenceState& add(std::unique_ptr<SequenceState> state);
  /// null when unknown.
  SequenceState* find(SequenceId id) const;
  /// Throws kInternal when unknown.
  SequenceState& at(SequenceId id) const;
  /// Forgets a sequence and hands its state over, kRemoved.
  std::unique_ptr<SequenceState> remove(SequenceState& state);

  /// To the queue, at its old place in line.
  void queue(SequenceState& state);
  /// To the running ones, with a rank. Within a class an older one never has a lower rank than a younger one: it is
  /// raised, if need be, so that whatever the younger one gained by waiting, the younger one is preempted first.
  void run(SequenceState& state, double rank);
  /// From the running ones to the idle ones.
  void rest(SequenceState& state);
  /// From the idle ones to the parked ones.
  void park(SequenceState& state);

  const States& running() const { return running_; }  ///< best rank first
  const States& idle() const { return idle_; }        ///< likewise
  const WaitingQueue& waiting() const { return waiting_; }

 private:
  void leave(SequenceState& state);

  std::unordered_map<SequenceId, std::unique_ptr<SequenceState>> states_;
  WaitingQueue waiting_;
  States running_;
  States idle_;
  std::uint64_t next_order_ = 0;
};

}  // namespace genai::sched
