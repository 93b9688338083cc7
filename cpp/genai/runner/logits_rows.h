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

  /// A loan until the next begin().
  StepLogits result() const;

 private:
  DType dtype_;
  std::int64_t vocab_size_;
  std::string output_name_;
  std::int64_t num_rows_ = 0;
  tensor::Buffer values_;  ///< float32 [rows, vocab]
};

}  // namespace genai::runner
