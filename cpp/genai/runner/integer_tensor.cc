#include "genai/runner/integer_tensor.h"

#include "genai/base/error.h"

#include <algorithm>
#include <cstring>

namespace genai::runner {

bool IntegerTensor::reshape(const Dims& dims) {
  if (shaped_ && dims == dims_) return false;
  dims_ = dims;
  shaped_ = true;
  const std::size_t needed = std::max<std::size_t>(size(), 1) * size_bytes(dtype_);
  if (memory_.size() < needed) memory_.resize(needed);
  return true;
}

void IntegerTensor::set(std::size_t index, std::int64_t element) {
  const auto store = [&]<typename T>(T value) { std::memcpy(memory_.data() + index * sizeof(T), &value, sizeof(T)); };
  switch (dtype_) {
    case DType::kInt64:
      return store(element);
    case DType::kInt32:
      return store(static_cast<std::int32_t>(element));
    case DType::kBool:
      return store(static_cast<std::uint8_t>(element != 0 ? 1 : 0));
    case DType::kInt8:
    case DType::kUInt8:
      return store(static_cast<std::uint8_t>(element));
    case DType::kFloat32:
      return store(static_cast<float>(element));
    case DType::kFloat16:
    case DType::kBFloat16:
      check(element == 0 || element == 1, "a half-precision input may only be 0 or 1");
      return store(static_cast<std::uint16_t>(element == 0 ? 0 : dtype_ == DType::kFloat16 ? 0x3C00 : 0x3F80));
  }
}

ort::Value IntegerTensor::value(const ort::Library& library) {
  return ort::Value::view(library, dtype_, dims_, memory_.data());
}

}  // namespace genai::runner
