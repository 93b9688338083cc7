#pragma once

#include "genai/base/error.h"
#include "genai/base/ids.h"
#include "genai/core/request.h"
#include "genai/core/step.h"
#include "genai/core/token_table.h"
#include "genai/engine/metrics.h"
#include "genai/engine/options.h"
#include "genai/engine/row_sampling.h"
#include "genai/engine/sequence_output.h"
#include "genai/runner/model_runner.h"
#include "genai/sched/scheduler.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace genai::engine {

/// Tokens that a sequence may have, prompt and output; 0 = no limit known.
struct ContextLimit {
  std::int64_t tokens = 0;
  std::string source;  ///< where the limit comes from, for errors
};

/// The loop body: schedule, execute, sample, update, for all requests. No threads and no clocks of its own, so it is
/// tested with a fake runner. One thread.
///
/// Every accepted request ends with exactly one event that has `last`, whatever fails.
class EngineCore {
 public:
  using Sink = std::function<void(RequestId, Event)>;

  /// `sink` receives the events; it is called from add(), abort(), step() and abort_all() and must not throw.
  EngineCore(std::unique_ptr<runner::ModelRunner> runner, std::shared_ptr<const TokenTable> tokens,
             EngineOptions options, Sink sink);

  /// Tokens that a sequence may have (prompt and output) and where the limit comes from.
  std::int64_t context_limit() const { return context_.tokens; }
  const std::string& context_source() const { return context_.source; }

  /// Throws what a caller of submit() should see: kInvalidArgument, kContextOverflow, kResourceExhausted. Const: safe
  /// from any thread.
  void validate(const Request& request) const;

  /// Requires: validate() passed. `seed` is used when the request has none.
  void add(RequestId id, Request request, std::uint64_t seed);
  /// Ends a request with kAbort; unknown ids are ignored.
  void abort(RequestId id);
  /// Ends all requests with kAbort and `error`.
  void abort_all(const Error& error);

  bool has_work() const { return !requests_.empty(); }
  /// Runs one step. Never throws for a fault of one request or of the runner.
  void step();
  Metrics metrics() const;
  const runner::RunnerInfo& runner_info() const { return runner_->info(); }
  void interrupt_runner() { runner_->interrupt(); }

 private:
  struct Choice {
    SequenceId id;
    std::unique_ptr<sampling::SequenceSampler> sampler;
    SequenceOutput output;
    bool finished = false;
  };
  struct Active {
    RequestId id;
    Request request;
    std::vector<Choice> choices;  ///< choices[0] computes the prompt; the others are forked from it
    std::int64_t max_total_tokens = 0;
    std::optional<BudgetCap> budget_cap;
    bool failed = false;
    bool aborted = false;
  };
  struct Row {
    Active* active = nullptr;
    std::size_t choice = 0;
    std::int64_t logits_row = 0;
  };

  std::int64_t grant_total_tokens(const Request& request, std::optional<BudgetCap>& cap) const;
  StepLogits execute_plan(const StepPlan& plan, std::unordered_map<SequenceId, Error>& errors);
  StepLogits execute_one_by_one(const StepPlan& plan, std::unordered_map<SequenceId, Error>& errors);
  std::vector<Row> rows_of(const StepPlan& plan, const std::unordered_map<SequenceId, Error>& errors);
  void fork_choices(Active& active, std::vector<Row>& rows, std::int64_t logits_row);
  void sample_and_emit(const std::vector<Row>& rows, const StepLogits& logits, sched::StepResult& result);
  void emit(Active& active, Choice& choice, Event event);
  void fail_choice(Active& active, Choice& choice, const Error& error);
  void erase_finished();

  std::unique_ptr<runner::ModelRunner> runner_;
  std::shared_ptr<const TokenTable> tokens_;
  EngineOptions options_;
  Sink sink_;
  ContextLimit context_;
  std::int64_t vocab_size_;  ///< ids that may be sampled: logits rows may be padded beyond the tokenizer
  sched::Scheduler scheduler_;
  RowSampling row_sampling_;
  std::uint64_t next_sequence_ = 1;
  std::unordered_map<RequestId, std::unique_ptr<Active>> requests_;
  std::unordered_map<SequenceId, std::pair<Active*, std::size_t>> owners_;
  std::vector<float> own_logits_;  ///< rows of a step that was executed piece by piece, or copies for forks
  std::vector<RowJob> jobs_;
  Metrics metrics_;
};

}  // namespace genai::engine
