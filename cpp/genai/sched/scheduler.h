#pragma once

#include "genai/base/ids.h"
#include "genai/core/encoder_inputs.h"
#include "genai/core/kv.h"
#include "genai/core/request.h"
#include "genai/core/step.h"
#include "genai/kv/kv_manager.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace genai::sched {

struct SchedulerConfig {
  int max_num_seqs = 64;  ///< sequences that compute at once
  /// Token budget of a step; no more sequences than that compute at once. The source of an encoder-decoder counts in
  /// the step that encodes it; one that is larger than what is left is encoded when no other is.
  std::int64_t max_num_batched_tokens = 2048;
  /// Prefill tokens in a step that also decodes: bounds how long running answers stall behind a new prompt.
  std::int64_t max_prefill_tokens_while_decoding = 256;
  bool can_chunk_prefill = true;  ///< false: a prompt runs whole in one step, whatever the budget
  /// A waiting sequence gains one priority for each so many seconds, so that nobody waits for ever. 0 = no ageing.
  double priority_ageing_seconds = 10.0;
};

/// A sequence as the scheduler gets it.
struct NewSequence {
  SequenceId id;
  std::vector<TokenId> prompt;        ///< all known ids, not empty
  std::int64_t max_total_tokens = 0;  ///< prompt and output; > prompt.size(), <= KvManager::capacity_tokens()
  int priority = 0;                   ///< higher runs first
  std::string cache_salt;
  std::shared_ptr<const EncoderInputs> encoder_inputs = {};  ///< of an encoder-decoder; a forked one has its parent's
};

/// What came out for one planned sequence.
struct SequenceResult {
  SequenceId id;
  std::optional<TokenId> token;        ///< sampled; requires needs_logits in the plan
  std::optional<FinishReason> finish;  ///< the engine ends it (stop, error); the scheduler adds kLength
  /// Tokens that must follow `token` whatever the model says (a grammar leaves no choice); computed with it in the next
  /// step. Requires: max_total_tokens is not exceeded.
  std::vector<TokenId> forced = {};
};

/// Outcome of a step, in plan order; forked sequences may follow.
struct StepResult {
  std::vector<SequenceResult> sequences;
};

/// Totals.
struct SchedulerStats {
  std::int64_t num_preemptions = 0;
};

/// Decides what runs next. Knows ids and counts, never tensors or text; tested without a model and in virtual time. One
/// thread.
///
/// Order: priority (with ageing while waiting), then arrival. In a step, decode rows go first, then prefill chunks,
/// then waiting sequences are admitted while `max_num_seqs`, the token budget and KV allow. The head of the queue is
/// never overtaken by one of its class.
///
/// A sequence is admitted when KV has room for all of its known tokens and a little more; then it grows. When a running
/// sequence finds no block, the running sequence of lowest priority and latest arrival is preempted: it gives its
/// blocks back, keeps its tokens, and returns to the queue at its old place in line; what it had computed is found
/// again in the prefix cache or lower tiers as far as it is still there. A waiting sequence whose priority (without
/// ageing) is higher preempts one of lower priority when `max_num_seqs` or KV is what it waits for. A running sequence
/// keeps what it gained by ageing until it was admitted, so it is not preempted by those that it went before. A
/// sequence alone always fits, so the oldest of the highest class always advances.
class Scheduler {
 public:
  Scheduler(SchedulerConfig config, kv::KvConfig kv);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Puts a sequence in the queue. `now`: seconds of any clock that never goes back; used for ageing only.
  void add(NewSequence sequence, double now);

  /// Starts `child` as a copy of the running `parent` and returns true; else (no room to run it now, or others wait
  /// before it) queues it and returns false. `child.prompt` begins with tokens of the parent; it shares the KV of the
  /// positions that both have and that are computed, those of the open plan included. May be called while a plan is
  /// open (the child's first token then comes with update()) or not (its last token is then not computed yet). The
  /// child has its parent's place in line, age and num_cached_tokens(). Requires: if a plan is open, it was run.
  bool fork(SequenceId parent, NewSequence child, double now);

  /// Forgets a sequence, running or waiting; false if it is unknown. Its KV is given back at once, but if the open plan
  /// names it, when that is closed: what the plan lends stays until then.
  bool remove(SequenceId id);

  /// Takes a running or idle sequence's blocks back and queues it again (an idle one when it gets its next token), as
  /// if memory were short; false if it holds none. Requires: no plan is open.
  bool preempt(SequenceId id);

  /// The next step; empty when nothing can run. Requires: the last plan was updated or abandoned.
  StepPlan schedule(double now);

  /// The last plan was not run (KV is as before); its sequences are planned again. No effect when no plan is open.
  void abandon();

  /// Advances by the last plan's outcome: appends tokens, ends what is finished. Returns the finished sequences in plan
  /// order with their reason. Planned sequences that `result` does not name did not run and are planned again. The KV
  /// of a step that ends with kError or kAbort is not kept for others. A sequence whose last known token was computed
  /// and that gets neither token nor finish is idle: it is in no plan, does not count as computing, and is the first to
  /// be preempted, until append() or remove().
  struct Finished {
    SequenceId id;
    FinishReason reason;
  };
  std::vector<Finished> update(const StepResult& result);

  /// Gives an idle sequence its next token. Requires: max_total_tokens is not exceeded.
  void append(SequenceId id, TokenId token);

  /// KV operations to carry out before the next step (and after update(), to free memory early).
  std::vector<KvOp> take_kv_ops();
  /// An operation failed: sequences that needed it start again from what is left. Abandons an open plan.
  void kv_failed(const KvOp& op);

  /// Prompt and generated ids of a running or waiting sequence. A loan until the next update() or append().
  const std::vector<TokenId>& tokens(SequenceId id) const;
  /// Whether one more token would be the last that `max_total_tokens` allows.
  bool next_token_is_last(SequenceId id) const;
  /// Prompt tokens whose KV was found when the sequence first started.
  std::int64_t num_cached_tokens(SequenceId id) const;

  std::size_t num_running() const;  ///< idle ones do not count
  std::size_t num_waiting() const;  ///< likewise
  SchedulerStats stats() const;
  kv::KvManager& kv();
  const kv::KvManager& kv() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace genai::sched
