#include "genai/sampling/temperature.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace genai::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

TEST_CASE("Temperature_OrdinaryValue_Divides") {
  std::vector<float> row = {1.0F, kForbidden, -3.0F};

  apply_temperature(row, 0.5F);

  CHECK(row == std::vector<float>{2.0F, kForbidden, -6.0F});
}

TEST_CASE("Temperature_One_LeavesTheRowUntouched") {
  std::vector<float> row = {1.0F, -3.0F};

  apply_temperature(row, 1.0F);

  CHECK(row == std::vector<float>{1.0F, -3.0F});
}

TEST_CASE("Temperature_QuotientWouldOverflow_LeavesTheLargestFinite") {
  for (const float tiny : {1e-38F, 1e-45F}) {
    std::vector<float> row = {20.0F, 19.0F, kForbidden};

    apply_temperature(row, tiny);

    CHECK(row[0] == 0.0F);
    CHECK(row[1] < -1e30F);
    CHECK(row[2] == kForbidden);
  }
}

TEST_CASE("TemperatureScale_TinyTemperature_IsFinite") {
  CHECK(temperature_scale(0.5F) == 2.0F);
  CHECK(std::isfinite(temperature_scale(1e-45F)));
}

}  // namespace
}  // namespace genai::sampling
