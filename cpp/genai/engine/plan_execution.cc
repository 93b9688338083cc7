#include "genai/engine/plan_execution.h"

#include <exception>
#include <new>
#include <variant>

namespace genai::engine {
namespace {

std::variant<StepLogits, Error> try_run(runner::ModelRunner& runner, const StepPlan& plan) {
  try {
    return runner.execute(plan);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "out of memory while running the model; use a shorter prompt or fewer requests at once");
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  }
}

}  // namespace

void PlanExecution::run(runner::ModelRunner& runner, const StepPlan& plan) {
  errors_.clear();
  interrupted_ = false;
  const std::variant<StepLogits, Error> outcome = try_run(runner, plan);
  if (const StepLogits* logits = std::get_if<StepLogits>(&outcome)) {
    logits_ = *logits;
    return;
  }
  logits_ = {};
  const Error& error = std::get<Error>(outcome);
  interrupted_ = error.code() == ErrorCode::kAborted;
  if (interrupted_) return;
  if (plan.sequences.size() > 1) {
    run_one_by_one(runner, plan);
  } else {
    errors_.assign(plan.sequences.size(), error);
  }
}

void PlanExecution::run_one_by_one(runner::ModelRunner& runner, const StepPlan& plan) {
  own_logits_.clear();
  errors_.resize(plan.sequences.size());
  logits_.vocab_size = runner.info().vocab_size;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const std::variant<StepLogits, Error> outcome = try_run(runner, StepPlan{.sequences = {plan.sequences[i]}});
    if (const StepLogits* part = std::get_if<StepLogits>(&outcome)) {
      own_logits_.insert(own_logits_.end(), part->values.begin(), part->values.end());
      logits_.num_rows += part->num_rows;
      continue;
    }
    errors_[i] = std::get<Error>(outcome);
    interrupted_ = interrupted_ || errors_[i]->code() == ErrorCode::kAborted;
    if (interrupted_) return;
  }
  logits_.values = own_logits_;
}

}  // namespace genai::engine
