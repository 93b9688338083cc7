#include "genai/sampling/logit_bias.h"

#include <doctest/doctest.h>

#include <limits>
#include <utility>
#include <vector>

namespace genai::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
using Biases = std::vector<std::pair<TokenId, float>>;

TEST_CASE("LogitBias_FiniteOrForbidding_IsAdded") {
  std::vector<float> row = {1.0F, 2.0F, 3.0F, kForbidden};

  apply_logit_bias(row, Biases{{0, 100.0F}, {1, kForbidden}, {2, -0.5F}, {3, 100.0F}});

  CHECK(row == std::vector<float>{101.0F, kForbidden, 2.5F, kForbidden});
}

TEST_CASE("LogitBias_IdOutsideTheRow_IsIgnored") {
  std::vector<float> row = {1.0F};

  apply_logit_bias(row, Biases{{-1, 5.0F}, {1, 5.0F}});

  CHECK(row == std::vector<float>{1.0F});
}

}  // namespace
}  // namespace genai::sampling
