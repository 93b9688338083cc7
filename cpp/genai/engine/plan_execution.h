#pragma once

#include "genai/base/error.h"
#include "genai/core/step.h"
#include "genai/runner/model_runner.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace genai::engine {

/// Runs plans so that a fault hits its own sequence alone: when a batch fails, each of its sequences runs alone once.
/// Buffers grow to rows x vocab only after a fault. One thread.
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
  void run_one_by_one(runner::ModelRunner& runner, const StepPlan& plan);

  StepLogits logits_;
  std::vector<std::optional<Error>> errors_;  ///< empty when nothing failed
  bool interrupted_ = false;
  std::vector<float> own_logits_;  ///< rows of a plan that was run one by one
};

}  // namespace genai::engine
