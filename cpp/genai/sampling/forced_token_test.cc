#include "genai/sampling/forced_token.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

namespace genai::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

TEST_CASE("ForceToken_EvenAForbiddenOne_IsTheOnlyChoice") {
  std::vector<float> row = {5.0F, kForbidden, 3.0F};

  force_token(row, 1);

  CHECK(row == std::vector<float>{kForbidden, 0.0F, kForbidden});
}

TEST_CASE("ForceToken_OutsideTheRow_IsAnInternalError") {
  std::vector<float> row = {5.0F};

  CHECK_THROWS_AS(force_token(row, 1), Error);
}

}  // namespace
}  // namespace genai::sampling
