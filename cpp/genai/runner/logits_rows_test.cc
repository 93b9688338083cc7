#include "genai/runner/logits_rows.h"

#include "genai/base/error.h"
#include "genai/runner/test_models.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

namespace genai::runner {
namespace {

ModelSpec spec_of(DType dtype) {
  ModelSpec spec;
  spec.logits = "logits";
  spec.logits_dtype = dtype;
  spec.vocab_size = 2;
  return spec;
}

}  // namespace

TEST_CASE("LogitsRows_EachShape_GivesTheLastPosition") {
  const std::optional<std::string> path = test_ort_library();
  if (!path) return;
  const ort::Library& library = ort::Library::load(*path);
  std::array<float, 8> values = {1, 2, 3, 4, 5, 6, 7, 8};
  LogitsRows rows(spec_of(DType::kFloat32));
  const auto last = [&](const Dims& dims, std::int64_t batch_row) {
    rows.begin(1);
    rows.take(0, ort::Value::view(library, DType::kFloat32, dims, values.data()), batch_row);
    const std::span<float> row = rows.result().row(0);
    return std::vector<float>(row.begin(), row.end());
  };

  CHECK(last({2, 2, 2}, 0) == std::vector<float>{3, 4});
  CHECK(last({2, 2, 2}, 1) == std::vector<float>{7, 8});
  CHECK(last({4, 1, 2}, 2) == std::vector<float>{5, 6});
  CHECK(last({4, 2}, 0) == std::vector<float>{7, 8});
  CHECK(last({2}, 0) == std::vector<float>{1, 2});
}

TEST_CASE("LogitsRows_Position_CountsLeadingDimsAsOne") {
  const std::optional<std::string> path = test_ort_library();
  if (!path) return;
  const ort::Library& library = ort::Library::load(*path);
  std::array<float, 8> values = {1, 2, 3, 4, 5, 6, 7, 8};
  LogitsRows rows(spec_of(DType::kFloat32));
  rows.begin(2);

  for (const Dims& dims : {Dims{1, 4, 2}, Dims{4, 2}, Dims{2, 2, 2}}) {
    const ort::Value value = ort::Value::view(library, DType::kFloat32, dims, values.data());
    rows.take_position(0, value, 3);
    rows.take_position(1, value, 1);
    CHECK(rows.result().row(0)[0] == 7.0F);
    CHECK(rows.result().row(1)[1] == 4.0F);
    CHECK_THROWS_AS(rows.take_position(0, value, 4), Error);
  }
}

TEST_CASE("LogitsRows_WrongShape_IsABadPackage") {
  const std::optional<std::string> path = test_ort_library();
  if (!path) return;
  const ort::Library& library = ort::Library::load(*path);
  std::array<float, 8> values{};
  LogitsRows rows(spec_of(DType::kFloat32));
  rows.begin(1);

  for (const Dims& dims : {Dims{1, 2, 4}, Dims{}, Dims{1, 1, 4, 2}, Dims{1, 0, 2}}) {
    CAPTURE(dims.text());
    const ort::Value value = ort::Value::view(library, DType::kFloat32, dims, values.data());
    CHECK_THROWS_AS(rows.take(0, value, 0), Error);
  }
  CHECK_THROWS_AS(rows.take(0, ort::Value::view(library, DType::kFloat32, {2, 2, 2}, values.data()), 2), Error);
}

TEST_CASE("LogitsRows_HalfPrecision_IsConverted") {
  const std::optional<std::string> path = test_ort_library();
  if (!path) return;
  const ort::Library& library = ort::Library::load(*path);
  std::array<std::uint16_t, 2> half = {0x3C00, 0xC000};   // 1, -2
  std::array<std::uint16_t, 2> brain = {0x3F80, 0xC000};  // 1, -2
  LogitsRows of_half(spec_of(DType::kFloat16));
  LogitsRows of_brain(spec_of(DType::kBFloat16));

  of_half.begin(1);
  of_half.take(0, ort::Value::view(library, DType::kFloat16, {1, 1, 2}, half.data()), 0);
  of_brain.begin(1);
  of_brain.take(0, ort::Value::view(library, DType::kBFloat16, {1, 1, 2}, brain.data()), 0);

  for (const StepLogits& result : {of_half.result(), of_brain.result()}) {
    CHECK(result.row(0)[0] == 1.0F);
    CHECK(result.row(0)[1] == -2.0F);
  }
  CHECK_THROWS_AS(LogitsRows(spec_of(DType::kInt64)), Error);
}

}  // namespace genai::runner
