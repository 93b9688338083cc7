#include "genai/ort/value.h"

#include "genai/ort/test_library.h"

#include "onnxruntime/abi.h"

#include <doctest/doctest.h>

#include <array>
#include <utility>

namespace genai::ort {

TEST_CASE("ElementType_EachOfOurs_GoesThereAndBack") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt64, DType::kInt32,
                            DType::kInt8, DType::kUInt8, DType::kBool}) {
    CHECK(from_element_type(to_element_type(dtype)) == dtype);
  }
  CHECK_FALSE(from_element_type(ort_abi::ElementType::kString).has_value());
  CHECK_FALSE(from_element_type(ort_abi::ElementType::kUndefined).has_value());
}

TEST_CASE("Value_View_SharesTheCallersMemory") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  const Library& library = Library::load(*path);
  std::array<std::int64_t, 6> memory = {1, 2, 3, 4, 5, 6};

  Value value = Value::view(library, DType::kInt64, {2, 3}, memory.data());
  const Value moved = std::move(value);

  CHECK(moved.data_as<std::int64_t>() == memory.data());
  CHECK(moved.dims() == Dims{2, 3});
  CHECK(value.empty());
}

TEST_CASE("Value_ScalarAndEmptyTensor_KeepTheirDims") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  const Library& library = Library::load(*path);
  std::int32_t memory = 7;

  CHECK(Value::view(library, DType::kInt32, Dims{}, &memory).dims() == Dims{});
  CHECK(Value::allocate(library, DType::kFloat16, {1, 2, 0, 8}).dims() == Dims{1, 2, 0, 8});
}

}  // namespace genai::ort
