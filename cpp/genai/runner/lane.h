#pragma once

#include "genai/ort/session.h"
#include "genai/runner/loaded_model.h"
#include "genai/runner/step_inputs.h"

namespace genai::runner {

/// A set of Run arguments that a decoder keeps for one kind of Run, so that little is bound anew in each step.
/// One thread.
class Lane {
 public:
  explicit Lane(const LoadedModel& model);

  ort::RunFrame& frame() { return frame_; }
  StepInputs& inputs() { return inputs_; }

  // Output 0 of the frame is the logits; input past(i) and output present(i) are spec().kv[i].
  static constexpr std::size_t kLogits = 0;
  std::size_t past(std::size_t pair) const { return inputs_.num_inputs() + pair; }
  static std::size_t present(std::size_t pair) { return 1 + pair; }

 private:
  StepInputs inputs_;
  ort::RunFrame frame_;
};

}  // namespace genai::runner
