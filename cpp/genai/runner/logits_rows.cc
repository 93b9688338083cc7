#include "genai/runner/logits_rows.h"

#include "genai/base/error.h"
#include "genai/kernels/convert.h"

#include <cstring>
#include <string>

namespace genai::runner {

LogitsRows::LogitsRows(const ModelSpec& spec)
    : dtype_(spec.logits_dtype), vocab_size_(spec.vocab_size), output_name_(spec.logits) {
  if (dtype_ != DType::kFloat32 && dtype_ != DType::kFloat16 && dtype_ != DType::kBFloat16) {
    throw Error(ErrorCode::kUnsupported, "output \"" + output_name_ + "\" is " + std::string(name(dtype_)) +
                                             "; supported: float32, float16, bfloat16");
  }
}

void LogitsRows::begin(std::int64_t num_rows) {
  num_rows_ = num_rows;
  const std::size_t needed = static_cast<std::size_t>(num_rows * vocab_size_) * sizeof(float);
  if (values_.size_bytes() < needed) values_ = tensor::Buffer(needed);
}

void LogitsRows::take(std::int64_t row, const ort::Value& logits, std::int64_t batch_row) {
  const Dims dims = logits.dims();
  const std::size_t rank = dims.rank();
  const std::int64_t batch = rank == 3 ? dims[0] : 1;
  const std::int64_t positions = rank >= 2 ? dims[rank - 2] : 1;
  if (rank < 1 || rank > 3 || dims[rank - 1] != vocab_size_ || positions < 1 || batch_row >= batch) {
    refuse(dims);
  }
  copy(row, logits, batch_row * positions + positions - 1);
}

void LogitsRows::take_position(std::int64_t row, const ort::Value& logits, std::int64_t position) {
  const Dims dims = logits.dims();
  const std::size_t rank = dims.rank();
  if (rank < 1 || dims[rank - 1] != vocab_size_ || position >= dims.product(0, rank - 1)) refuse(dims);
  copy(row, logits, position);
}

void LogitsRows::refuse(const Dims& dims) const {
  throw Error(ErrorCode::kBadPackage, "output \"" + output_name_ + "\" has dims " + dims.text() +
                                          "; expected [batch, sequence, " + std::to_string(vocab_size_) + "]");
}

void LogitsRows::copy(std::int64_t row, const ort::Value& logits, std::int64_t source_row) {
  const auto width = static_cast<std::size_t>(vocab_size_);
  const std::byte* const source = logits.data() + static_cast<std::size_t>(source_row) * width * size_bytes(dtype_);
  float* const target = values_.data_as<float>() + static_cast<std::size_t>(row) * width;
  if (dtype_ == DType::kFloat32) {
    std::memcpy(target, source, width * sizeof(float));
  } else if (dtype_ == DType::kFloat16) {
    kernels::convert_float16(reinterpret_cast<const std::uint16_t*>(source), target, width);
  } else {
    kernels::convert_bfloat16(reinterpret_cast<const std::uint16_t*>(source), target, width);
  }
}

StepLogits LogitsRows::result() const {
  return {.values = {values_.data_as<float>(), static_cast<std::size_t>(num_rows_ * vocab_size_)},
          .vocab_size = vocab_size_,
          .num_rows = num_rows_};
}

}  // namespace genai::runner
