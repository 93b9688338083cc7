#pragma once

#include "genai/base/error.h"
#include "genai/base/ids.h"
#include "genai/base/trace.h"
#include "genai/core/adapter.h"
#include "genai/core/request.h"
#include "genai/core/step.h"
#include "genai/core/token_table.h"
#include "genai/engine/active_request.h"
#include "genai/engine/kv_transfer.h"
#include "genai/engine/metrics.h"
#include "genai/engine/options.h"
#include "genai/engine/plan_execution.h"
#include "genai/engine/request_limits.h"
#include "genai/engine/request_trace.h"
#include "genai/engine/row_sampling.h"
#include "genai/engine/swap_cost_meter.h"
#include "genai/grammar/closing.h"
#include "genai/runner/model_runner.h"
#include "genai/sched/scheduler.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace genai::engine {

/// The loop body: schedule, move KV, execute, sample, update, for all requests. No threads; time comes in as `now`
/// (seconds that never go back), so it is tested with fake runners in virtual time. One thread.
///
/// Every accepted request ends with exactly one event that has `last`, whatever fails.
class EngineCore {
 public:
  using Sink = std::function<void(RequestId, Event)>;
  using Clock = std::function<double()>;

  /// `sink` receives the events; it is called from add(), abort(), step() and abort_all() and must not throw. `clock`
  /// gives seconds for metrics and for the cost of moving KV; null = the system's monotonic clock.
  EngineCore(std::unique_ptr<runner::ModelRunner> runner, std::shared_ptr<const TokenTable> tokens,
             EngineOptions options, Sink sink, Clock clock = nullptr);

  /// Tokens that a sequence may have (prompt and output) and where the limit comes from.
  std::int64_t context_limit() const { return limits_.context().tokens; }
  const std::string& context_source() const { return limits_.context().source; }

  /// Throws what a caller of submit() should see: kInvalidArgument, kContextOverflow. Const: safe
  /// from any thread.
  void validate(const Request& request) const { limits_.validate(request); }

  /// See ModelRunner; any thread may call it.
  std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const { return runner_->load_adapter(file); }

  /// Requires: validate() passed. `seed` is used when the request has none. The timeout counts from `now`.
  /// The timeout counts from `submitted`, by default from `now`.
  void add(RequestId id, Request request, std::uint64_t seed, double now,
           std::optional<double> submitted = std::nullopt);
  /// Ends a request with kAbort; unknown ids are ignored.
  void abort(RequestId id);
  /// Ends all requests with kAbort and `error`.
  void abort_all(const Error& error);
  /// Takes the KV of a request's sequences away, as if memory were short; false if none runs.
  bool preempt(RequestId id);

  bool has_work() const { return !requests_.empty(); }
  /// Runs one step; false when nothing could run now. Never throws for a fault of one request or of the runner.
  bool step(double now);

  /// See kv_transfer.h.
  KvBytes export_kv(std::span<const TokenId> tokens, std::string_view salt);
  std::int64_t import_kv(std::span<const TokenId> tokens, std::string_view salt, std::span<const std::byte> bytes);
  /// Drops the KV that no sequence holds.
  void clear_prefix_cache();

  /// Starts recording anew, see Tracer::start(); requests that are there are noted.
  void start_trace(TraceLevel level, std::size_t max_events, std::string ops_folder);
  const std::shared_ptr<Tracer>& tracer() const { return tracer_; }
  /// The thread beside that of step() which may call code of a user.
  std::shared_ptr<const std::atomic<std::thread::id>> helper_id() const { return bitmask_worker_.thread_id(); }
  /// Records the totals and gauges that have changed.
  void trace_counters(const Metrics& metrics) { request_trace_.counters(metrics, tracer_->started_ns()); }

  Metrics metrics() const;
  /// Why the last KV operation failed; empty when none did.
  const std::string& last_kv_failure() const { return last_kv_failure_; }
  const runner::RunnerInfo& runner_info() const { return runner_->info(); }
  std::int64_t block_bytes() const { return runner_->block_bytes(); }
  void interrupt_runner() { runner_->interrupt(); }
  const kv::KvManager& kv() const { return scheduler_.kv(); }

 private:
  /// Where a sequence belongs: a choice, or a beam of the group.
  struct Owner {
    ActiveRequest* active = nullptr;
    std::size_t index = 0;
  };
  /// One row of logits and who takes it.
  struct Row {
    Owner owner;
    SequenceId id;
    std::int64_t logits_row = 0;
    std::size_t result = 0;  ///< place in result_
  };

  SequenceId new_sequence() { return SequenceId{next_sequence_++}; }
  void add_beams(ActiveRequest& active, std::uint64_t seed);
  void add_choices(ActiveRequest& active, std::uint64_t seed);

  // Ends of requests.
  void emit(ActiveRequest& active, ActiveChoice& choice, Event event);
  void fail_choice(ActiveRequest& active, ActiveChoice& choice, const Error& error);
  void end_request(ActiveRequest& active, FinishReason reason, const std::optional<Error>& error);
  void expire(double now);
  void erase_ended();

  // A step.
  bool step_parts(double now);
  bool make_plan(double now, StepPlan& plan);
  void lend_adapters(StepPlan& plan) const;
  void finish_plan(double now);
  bool apply_kv_ops();
  void start_kv_anew(std::span<const KvOp> ops, const std::string& reason);
  void release_sequences(std::span<const KvOp> ops);
  void count_tokens(const StepPlan& plan, double seconds);
  void fail_sequence(const Owner& owner, const ScheduledSequence& sequence, const Error& error);
  void collect_rows(const StepPlan& plan, double now);
  void fork_choices(ActiveRequest& active, std::int64_t logits_row, double now);
  void sample_rows(const StepLogits& logits);
  void begin_bitmasks(const StepPlan& plan);
  void finish_bitmasks();
  void make_jobs(const StepLogits& logits);
  Event take_token(const Row& row, RowJob& job, sched::SequenceResult& result);
  void advance_beams(double now);
  void own_beams(ActiveRequest& active);
  GrammarState::Facts grammar_facts();

  std::unique_ptr<runner::ModelRunner> runner_;
  std::shared_ptr<const TokenTable> tokens_;
  EngineOptions options_;
  std::shared_ptr<Tracer> tracer_;  ///< shared with the runner, and with threads that take what was recorded
  TraceBuffer& trace_;              ///< of tracer_
  RequestTrace request_trace_;
  std::int64_t trace_step_ns_ = 0;     ///< begin of the step that runs; 0 when it is not recorded
  std::int64_t trace_execute_ns_ = 0;  ///< the same of its execution
  Sink sink_;
  Clock clock_;
  std::int64_t vocab_size_;  ///< ids that may be sampled: logits rows may be padded beyond the tokenizer
  sched::Scheduler scheduler_;
  RequestLimits limits_;
  SwapCostMeter cost_meter_;
  PlanExecution execution_;
  RowSampling row_sampling_;
  std::optional<grammar::Closing> closing_;  ///< made with the first grammar
  BitmaskWorker bitmask_worker_{tracer_->thread(TraceThread::kGrammar)};
  std::uint64_t next_sequence_ = 1;
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  std::unordered_map<SequenceId, Owner> owners_;
  std::set<std::pair<double, RequestId>> deadlines_;
  std::vector<RequestId> ended_;  ///< had their last event; to be erased

  // Of the step that runs, or ran last: `now` and what clock_ gave at its begin.
  double step_now_ = 0.0;
  double step_start_ = 0.0;

  // Of the step that runs; kept for their memory.
  bool plan_open_ = false;
  std::vector<Row> rows_;
  std::vector<RowJob> jobs_;
  sched::StepResult result_;
  std::vector<BitmaskJob> bitmask_jobs_;
  std::vector<ActiveChoice*> bitmask_choices_;  ///< whose jobs these are
  std::vector<float> row_copies_;               ///< for choices that share a row
  std::vector<ActiveRequest*> ready_beams_;
  std::vector<std::pair<ActiveRequest*, Error>> failed_beams_;

  int num_failed_applies_ = 0;  ///< one after another
  std::string last_kv_failure_;
  Metrics metrics_;
};

}  // namespace genai::engine
