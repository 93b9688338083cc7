#include "genai/runner/integer_tensor.h"

#include "genai/base/error.h"
#include "genai/runner/test_models.h"

#include <doctest/doctest.h>

namespace genai::runner {

TEST_CASE("IntegerTensor_Reshape_TellsWhetherToBindAgain") {
  IntegerTensor tensor(DType::kInt32);

  CHECK(tensor.reshape({1, 3}));
  CHECK_FALSE(tensor.reshape({1, 3}));
  CHECK(tensor.reshape({3}));
  CHECK(tensor.reshape(Dims{}));
  CHECK(tensor.size() == 1);
  CHECK(tensor.reshape({0}));
}

TEST_CASE("IntegerTensor_EachType_HoldsItsElements") {
  const std::optional<std::string> path = test_ort_library();
  if (!path) return;
  const ort::Library& library = ort::Library::load(*path);
  IntegerTensor wide(DType::kInt64);
  IntegerTensor narrow(DType::kInt32);
  IntegerTensor flag(DType::kBool);
  IntegerTensor real(DType::kFloat32);
  for (IntegerTensor* tensor : {&wide, &narrow, &flag, &real}) {
    tensor->reshape({2});
    tensor->set(0, 0);
    tensor->set(1, 7);
  }

  CHECK(wide.value(library).data_as<std::int64_t>()[1] == 7);
  CHECK(narrow.value(library).data_as<std::int32_t>()[1] == 7);
  CHECK(flag.value(library).data_as<std::uint8_t>()[0] == 0);
  CHECK(flag.value(library).data_as<std::uint8_t>()[1] == 1);
  CHECK(real.value(library).data_as<float>()[1] == 7.0F);
  IntegerTensor half(DType::kFloat16);
  half.reshape({1});
  CHECK_THROWS_AS(half.set(0, 7), Error);
}

}  // namespace genai::runner
