#pragma once

#include "genai/base/error.h"
#include "genai/core/adapter.h"
#include "genai/core/step.h"
#include "genai/runner/model_runner.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace genai::engine {

/// Runs plans so that each run has one adapter, and that a fault hits its own sequence alone: when a batch fails, each
/// of its sequences runs alone once. A sequence whose adapter changes within its tokens runs once for each. Buffers
/// grow to rows x vocab only after a fault, or when a step has several adapters. One thread.
class PlanExecution {
 public:
  /// Runs the plan. The rows of logits() are those of the sequences that want logits and have no error, in plan order.
  void run(runner::ModelRunner& runner, const StepPlan& plan);

  const StepLogits& logits() const { return logits_; }
  /// The error of a sequence of the plan, by its index; null if it ran.
  const Error* error(std::size_t index) const {
    return index < errors_.size() && errors_[index] ? &*errors_[index] : nullptr;
  }
  /// interrupt() ended the run: KV is as before and nobody is at fault.
  bool interrupted() const { return interrupted_; }

 private:
  /// What is left to run of a sequence of the plan.
  struct Rest {
    std::size_t index = 0;
    ScheduledSequence sequence;
  };

  void run_by_adapter(runner::ModelRunner& runner, const StepPlan& plan);
  void take_group(const runner::ModelRunner& runner);
  void run_group(runner::ModelRunner& runner);
  void run_one_by_one(runner::ModelRunner& runner, const StepPlan& plan, const std::vector<std::size_t>& indices);
  void begin_rows(const runner::ModelRunner& runner, const StepPlan& plan);
  void keep_rows(const StepPlan& part, const std::vector<std::size_t>& indices, const StepLogits& logits);
  void finish_rows(const StepPlan& plan);

  StepLogits logits_;
  std::vector<std::optional<Error>> errors_;  ///< empty when nothing failed
  bool interrupted_ = false;

  // Of a plan that is not run as a whole.
  std::vector<float> own_logits_;    ///< [rows that the plan wants, vocab]
  std::vector<std::size_t> row_of_;  ///< of each sequence that wants one
  std::vector<Rest> rests_;
  StepPlan group_;                          ///< runs next, with one adapter
  std::vector<std::size_t> group_indices_;  ///< of its sequences in the plan
};

}  // namespace genai::engine
