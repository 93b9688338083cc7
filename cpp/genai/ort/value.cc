#include "genai/ort/value.h"

#include "genai/ort/status.h"

#include "onnxruntime/abi.h"

#include <array>
#include <string>
#include <utility>

namespace genai::ort {

std::optional<DType> from_element_type(ort_abi::ElementType type) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt64, DType::kInt32,
                            DType::kInt8, DType::kUInt8, DType::kBool}) {
    if (to_element_type(dtype) == type) return dtype;
  }
  return std::nullopt;
}

ort_abi::ElementType to_element_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ort_abi::ElementType::kFloat;
    case DType::kFloat16:
      return ort_abi::ElementType::kFloat16;
    case DType::kBFloat16:
      return ort_abi::ElementType::kBFloat16;
    case DType::kInt64:
      return ort_abi::ElementType::kInt64;
    case DType::kInt32:
      return ort_abi::ElementType::kInt32;
    case DType::kInt8:
      return ort_abi::ElementType::kInt8;
    case DType::kUInt8:
      return ort_abi::ElementType::kUInt8;
    case DType::kBool:
      return ort_abi::ElementType::kBool;
  }
  return ort_abi::ElementType::kUndefined;
}

Value::Value(Value&& other) noexcept
    : ort_library_(other.ort_library_), handle_(std::exchange(other.handle_, nullptr)) {}

Value& Value::operator=(Value&& other) noexcept {
  if (this != &other) {
    reset();
    ort_library_ = other.ort_library_;
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

Value::~Value() {
  reset();
}

void Value::reset() noexcept {
  if (handle_ != nullptr) ort_library_->api().call<ort_abi::ReleaseValue>(handle_);
  handle_ = nullptr;
}

Value Value::view(const Library& library, DType dtype, const Dims& dims, void* data) {
  const ort_abi::Api& api = library.api();
  const std::size_t size = static_cast<std::size_t>(dims.num_elements()) * size_bytes(dtype);
  ort_abi::Value* handle = nullptr;
  throw_if_failed(api,
                  api.call<ort_abi::CreateTensorWithDataAsOrtValue>(library.cpu_memory(), data, size, dims.data(),
                                                                    dims.rank(), to_element_type(dtype), &handle),
                  "ONNX Runtime could not make a tensor");
  return {library, handle};
}

Value Value::allocate(const Library& library, DType dtype, const Dims& dims) {
  const ort_abi::Api& api = library.api();
  ort_abi::Value* handle = nullptr;
  const StatusText status =
      take_status(api, api.call<ort_abi::CreateTensorAsOrtValue>(library.cpu_allocator(), dims.data(), dims.rank(),
                                                                 to_element_type(dtype), &handle));
  if (status.code != 0) {
    throw Error(ErrorCode::kResourceExhausted,
                "no memory for a tensor " + dims.text() + " of " + std::string(name(dtype)) + ": " + status.message);
  }
  return {library, handle};
}

std::byte* Value::data() const {
  const ort_abi::Api& api = ort_library_->api();
  void* data = nullptr;
  throw_if_failed(api, api.call<ort_abi::GetTensorMutableData>(handle_, &data), "the value is not a tensor");
  return static_cast<std::byte*>(data);
}

Dims Value::dims() const {
  const ort_abi::Api& api = ort_library_->api();
  ort_abi::TensorTypeAndShapeInfo* info = nullptr;
  throw_if_failed(api, api.call<ort_abi::GetTensorTypeAndShape>(handle_, &info), "the value is not a tensor");
  std::array<std::int64_t, Dims::kMaxRank> dims{};
  std::size_t rank = 0;
  take_status(api, api.call<ort_abi::GetDimensionsCount>(info, &rank));
  const bool fits = rank <= Dims::kMaxRank;
  if (fits) take_status(api, api.call<ort_abi::GetDimensions>(info, dims.data(), rank));
  api.call<ort_abi::ReleaseTensorTypeAndShapeInfo>(info);
  check(fits, "a tensor has more than 8 dimensions");
  return Dims(std::span<const std::int64_t>(dims.data(), rank));
}

}  // namespace genai::ort
