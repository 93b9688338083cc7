#pragma once

#include "genai/base/ids.h"
#include "genai/core/request.h"
#include "genai/core/step.h"
#include "genai/kv/token_budget.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace genai::sched {

struct SchedulerConfig {
  int max_num_seqs = 16;                       ///< sequences that run at once
  std::int64_t max_num_batched_tokens = 2048;  ///< token budget of a step
  /// Prefill tokens in a step that also decodes: bounds how long running answers stall behind a new prompt.
  std::int64_t max_prefill_tokens_while_decoding = 256;
  bool can_chunk_prefill = true;  ///< false: a prompt runs whole in one step, whatever the budget
};

/// A sequence as the scheduler gets it.
struct NewSequence {
  SequenceId id;
  std::vector<TokenId> prompt;        ///< not empty
  std::int64_t max_total_tokens = 0;  ///< prompt and output; > prompt.size(), <= TokenBudget::capacity()
};

/// What came out for one planned sequence.
struct SequenceResult {
  SequenceId id;
  std::optional<TokenId> token;        ///< sampled; requires needs_logits in the plan
  std::optional<FinishReason> finish;  ///< the engine ends it (stop, error); the scheduler adds kLength
};

/// Outcome of a step, in plan order.
struct StepResult {
  std::vector<SequenceResult> sequences;
};

/// Decides what runs next. Knows ids and counts, never tensors or text; tested without a model. One thread.
///
/// First come, first served: running sequences keep running; decode rows go first, then prefill chunks in order of
/// arrival, then waiting sequences while `max_num_seqs`, the token budget and the KV budget allow. A sequence reserves
/// KV for its whole length on admission, so nothing is preempted. The head of the queue is never overtaken: no
/// starvation.
class Scheduler {
 public:
  Scheduler(SchedulerConfig config, kv::TokenBudget budget);

  /// Puts a sequence at the end of the queue.
  void add(NewSequence sequence);

  /// Starts `child` as a copy of `parent` after its whole prompt was computed, if there is room to run it now; else
  /// the child is queued with its prompt, and false is returned. Requires: the parent runs.
  bool fork(SequenceId parent, NewSequence child);

  /// Forgets a sequence, running or waiting; true if it was known and running (the runner holds KV for it).
  bool remove(SequenceId id);

  /// The next step; empty when nothing can run. Requires: the last plan was updated.
  StepPlan schedule();

  /// Advances by the last plan's outcome: appends tokens, ends what is finished. Returns the finished sequences in plan
  /// order with their reason; their KV can be released.
  struct Finished {
    SequenceId id;
    FinishReason reason;
  };
  std::vector<Finished> update(const StepResult& result);

  /// Prompt and generated ids of a running or waiting sequence. A loan until the next update().
  const std::vector<TokenId>& tokens(SequenceId id) const;
  /// Whether one more token would be the last that `max_total_tokens` allows.
  bool next_token_is_last(SequenceId id) const;

  std::size_t num_running() const { return running_.size(); }
  std::size_t num_waiting() const { return waiting_.size(); }
  const kv::TokenBudget& budget() const { return budget_; }

 private:
  struct State {
    std::vector<TokenId> tokens;
    std::int64_t max_total_tokens = 0;
    std::int64_t num_computed_tokens = 0;
    std::int64_t num_scheduled_tokens = 0;  ///< in the plan that is out
    std::int64_t remaining() const { return static_cast<std::int64_t>(tokens.size()) - num_computed_tokens; }
  };
  void put(StepPlan& plan, SequenceId id, State& state, std::int64_t num_tokens) const;
  bool admit_head();
  std::int64_t prefill_share(const State& state, std::int64_t left) const;

  SchedulerConfig config_;
  kv::TokenBudget budget_;
  std::unordered_map<SequenceId, State> states_;
  std::vector<SequenceId> running_;  ///< in order of admission
  std::deque<SequenceId> waiting_;   ///< in order of arrival
};

}  // namespace genai::sched
