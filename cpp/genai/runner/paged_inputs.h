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

/// Whether a step of a steady decode (as many sequences as in the step before, one token and one row of logits each, a
/// block table as wide) keeps the inputs and bindings of that step and writes only what differs.
enum class DecodeMemo { kOn, kOff };

/// kOff when the environment variable ONNX_GENAI_DECODE_MEMO is "0".
DecodeMemo decode_memo_from_environment();

/// Fills the inputs of a paged graph except the KV: the tokens of all sequences of a step one after another, where each
/// sequence begins, and its blocks. Keeps the tensors between steps and binds only what changed, or with
/// DecodeMemo::kOff writes and binds all but the constants in each step; the elements are the same. One thread.
///
///     sequences        A (2 tokens run)   B (1 token runs)
///     ids              a5 a6              b9
///     positions        5  6               9
///     cumulative       0                  2                 3
///     past_seqlens     5                  9
///     block_table      [7, -1, -1]        [2, 0, 4]
///     logits_indices   1                  2
///     prompt_rows      1  1               0
///     metadata         2 10 10            (most tokens of a sequence, most positions after the step, the same again)
class PagedInputs {
 public:
  PagedInputs(const ModelSpec& spec, const ort::Library& library, DecodeMemo memo);

  /// The ports in the order in which fill() binds them, from input 0 of the frame on.
  static std::vector<InputPort> ports(const ModelSpec& spec);

  /// Requires: at least one sequence, each with blocks for its scheduled tokens, all ids in [0, num_hot_blocks).
  /// Allocates nothing once the tensors are as large as the largest step, but for the values of changed dims.
  void fill(ort::RunFrame& frame, const StepPlan& plan, std::int64_t num_hot_blocks);

  std::size_t num_inputs() const { return inputs_.size() + constants_.size(); }
  DecodeMemo memo() const { return memo_; }
  /// Calls of fill() that were steps of a steady decode.
  std::int64_t num_replays() const { return num_replays_; }

 private:
  enum class Role { kIds, kPositions, kCumulative, kPast, kBlockTable, kLogitsIndices, kPromptRows, kMetadata };
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

    bool operator==(const Sizes&) const = default;
  };

  static std::vector<std::pair<Role, InputPort>> roles(const ModelSpec& spec);
  Sizes sizes_of(const StepPlan& plan, std::int64_t num_hot_blocks) const;
  static Dims dims_of(const Input& input, const Sizes& sizes);
  void fill_input(Input& input, const StepPlan& plan, const Sizes& sizes) const;
  std::int64_t num_blocks(const ScheduledSequence& sequence) const;
  bool is_steady(const StepPlan& plan, const Sizes& sizes) const;
  void replay(const StepPlan& plan);
  void replay_block_table(IntegerTensor& tensor, const StepPlan& plan);

  const ort::Library& ort_library_;
  std::int64_t block_size_;
  DecodeMemo memo_;
  std::vector<Input> inputs_;
  ConstantInputs constants_;
  Sizes filled_;                          ///< of the step whose elements the tensors hold
  std::vector<std::int64_t> row_blocks_;  ///< ids in each row of the block table; empty = that step was no decode
  std::int64_t num_replays_ = 0;
};

}  // namespace genai::runner
