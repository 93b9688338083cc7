#pragma once

#include "genai/core/model_spec.h"
#include "genai/core/step.h"
#include "genai/ort/session.h"
#include "genai/runner/constant_inputs.h"
#include "genai/runner/integer_tensor.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace genai::runner {

/// Fills the inputs of a paged graph except the KV: the tokens of all sequences of a step one after another, where each
/// sequence begins, and its blocks. Keeps the tensors between steps and binds only what changed. One thread.
///
///     sequences        A (2 tokens run)   B (1 token runs)
///     ids              a5 a6              b9
///     positions        5  6               9
///     cumulative       0                  2                 3
///     past_seqlens     5                  9
///     block_table      [7, -1, -1]        [2, 0, 4]
///     logits_indices   1                  2
class PagedInputs {
 public:
  PagedInputs(const ModelSpec& spec, const ort::Library& library);

  /// The ports in the order in which fill() binds them, from input 0 of the frame on.
  static std::vector<InputPort> ports(const ModelSpec& spec);

  /// Requires: at least one sequence, each with blocks for its scheduled tokens, all ids in [0, num_hot_blocks).
  /// Allocates nothing once the tensors are as large as the largest step, but for the values of changed dims.
  void fill(ort::RunFrame& frame, const StepPlan& plan, std::int64_t num_hot_blocks);

  std::size_t num_inputs() const { return inputs_.size() + constants_.size(); }

 private:
  enum class Role { kIds, kPositions, kCumulative, kPast, kBlockTable, kLogitsIndices };
  struct Input {
    Role role;
    InputPort port;
    IntegerTensor tensor;
  };
  /// Sizes of a step.
  struct Sizes {
    std::int64_t sequences = 0;
    std::int64_t tokens = 0;
    std::int64_t columns = 1;  ///< of the block table
    std::int64_t rows = 1;     ///< of logits; a step that wants none computes one that nobody reads
  };

  static std::vector<std::pair<Role, InputPort>> roles(const ModelSpec& spec);
  Sizes sizes_of(const StepPlan& plan, std::int64_t num_hot_blocks) const;
  static Dims dims_of(const Input& input, const Sizes& sizes);
  void fill_input(Input& input, const StepPlan& plan, const Sizes& sizes) const;
  std::int64_t num_blocks(const ScheduledSequence& sequence) const;

  const ort::Library& ort_library_;
  std::int64_t block_size_;
  std::vector<Input> inputs_;
  ConstantInputs constants_;
};

}  // namespace genai::runner
