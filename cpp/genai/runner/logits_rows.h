#pragma once

#include "genai/core/model_spec.h"
#include "genai/core/step.h"
#include "genai/ort/value.h"
#include "genai/tensor/buffer.h"

#include <cstdint>
#include <vector>

namespace genai::runner {

/// Collects the float32 logits rows of a step from the outputs of its runs. One thread.
class LogitsRows {
 public:
  explicit LogitsRows(const ModelSpec& spec);

  /// Starts a step of `num_rows` rows. Memory grows to the largest step.
  void begin(std::int64_t num_rows);

  /// Row `row` of the step becomes the last position of row `batch_row` of `logits`, a tensor [batch, positions,
  /// vocab], [positions, vocab] or [vocab]. Throws kBadPackage when its last dim is not the vocabulary size.
  void take(std::int64_t row, const ort::Value& logits, std::int64_t batch_row);

  /// Row `row` of the step becomes position `position` of `logits`, a tensor [..., vocab] whose leading dims are
  /// counted as one. Throws kBadPackage as take() does, and when there is no such position.
  void take_position(std::int64_t row, const ort::Value& logits, std::int64_t position);

  /// A loan until the next begin().
  StepLogits result() const;

 private:
  [[noreturn]] void refuse(const Dims& dims) const;
  void copy(std::int64_t row, const ort::Value& logits, std::int64_t source_row);

  DType dtype_;
  std::int64_t vocab_size_;
  std::string output_name_;
  std::int64_t num_rows_ = 0;
  tensor::Buffer values_;  ///< float32 [rows, vocab]
};

}  // namespace genai::runner
