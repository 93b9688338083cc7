#pragma once

#include "genai/base/ids.h"
#include "genai/core/model_spec.h"
#include "genai/ort/session.h"
#include "genai/runner/attention_mask.h"
#include "genai/runner/constant_inputs.h"
#include "genai/runner/integer_tensor.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace genai::runner {

/// One row of a Run. All rows of a Run have the same number of tokens.
struct RunRow {
  std::span<const TokenId> tokens;  ///< to run now
  std::int64_t past = 0;            ///< tokens of the sequence before them
  std::int64_t mask_first = 0;      ///< first column of the mask that is 1
  std::int64_t mask_end = 0;        ///< end of the columns that are 1
};

/// Fills the inputs of a Run except the KV: ids, mask, positions, lengths, constants. Keeps the tensors between steps
/// and binds only what changed. One thread.
class StepInputs {
 public:
  StepInputs(const ModelSpec& spec, const ort::Library& library);

  /// Names of the inputs in the order in which fill() binds them, from input 0 of the frame on.
  static std::vector<std::string> names(const ModelSpec& spec);
  /// The ports in the same order.
  static std::vector<InputPort> ports(const ModelSpec& spec);

  /// mask_width: columns of the mask. Allocates nothing when the rows' dims are those of the last call, but for the
  /// amortised growth of the mask.
  void fill(ort::RunFrame& frame, std::span<const RunRow> rows, std::int64_t mask_width);

  std::size_t num_inputs() const { return inputs_.size() + constants_.size(); }

 private:
  enum class Role {
    kIds,
    kMask,
    kPositions,
    kSeqlensK,
    kTotalLength,
    kPastLength,
    kCachePosition,
    kUseCache,
    kWriteIndices,
    kNonpadLength,
  };
  struct Input {
    Role role;
    InputPort port;
    IntegerTensor tensor;  ///< not used for the mask
  };

  static std::vector<std::pair<Role, InputPort>> roles(const ModelSpec& spec);
  void fill_input(Input& input, std::span<const RunRow> rows);
  Dims dims_of(const Input& input, std::span<const RunRow> rows) const;

  const ort::Library& ort_library_;
  std::vector<Input> inputs_;
  ConstantInputs constants_;
  AttentionMask mask_;
  std::vector<AttentionMask::Row> mask_rows_;  ///< one a row, reused
};

}  // namespace genai::runner
