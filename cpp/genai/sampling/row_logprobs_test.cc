#include "genai/sampling/row_logprobs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace genai::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

TEST_CASE("RowLogprobs_PowersOfTwo_GivesExactLogarithms") {
  // p = 1/2, 1/4, 1/4
  const auto half = static_cast<float>(std::log(0.5));
  const auto quarter = static_cast<float>(std::log(0.25));
  const std::vector<float> row = {quarter, half, quarter, kForbidden};

  const TokenLogprob score = RowLogprobs(row, 3).score(0, row[0]);

  CHECK(score.token == 0);
  CHECK(score.logprob == doctest::Approx(quarter).epsilon(1e-6));
  REQUIRE(score.top.size() == 3);
  CHECK(score.top[0].token == 1);
  CHECK(score.top[1].token == 0);  // ties by lower id
  CHECK(score.top[2].token == 2);
  CHECK(score.top[0].logprob == doctest::Approx(half).epsilon(1e-6));
}

TEST_CASE("RowLogprobs_ForbiddenToken_IsMinusInfinity") {
  const std::vector<float> row = {1.0F, kForbidden};

  CHECK(RowLogprobs(row, 0).score(1, kForbidden).logprob == kForbidden);
  CHECK(RowLogprobs(row, 2).score(0, 1.0F).top[1].logprob == kForbidden);
}

TEST_CASE("RowLogprobs_OneToken_IsCertain") {
  const TokenLogprob score = RowLogprobs(std::vector<float>{-7.5F}, 5).score(0, -7.5F);

  CHECK(score.logprob == 0.0F);
  CHECK(score.top.size() == 1);
}

TEST_CASE("RowLogprobs_RandomRows_EqualsFloat64AndFullSort") {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0F, 6.0F);
  for (const std::size_t size : {1U, 2U, 64U, 65U, 4097U, 20000U}) {
    std::vector<float> row(size);
    for (float& logit : row) logit = std::round(normal(random) * 4.0F) / 4.0F;  // with ties
    std::vector<TokenId> order(size);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&](TokenId id) { return row[static_cast<std::size_t>(id)]; });
    const double max = static_cast<double>(row[static_cast<std::size_t>(order[0])]);
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit) - max);

    const TokenLogprob score = RowLogprobs(row, 20).score(0, row[0]);

    // Result in float32 (half an ulp of at most 64), and the relative error of the sum, below 32 ulp.
    const double tolerance = (32.0 + 32.0) * std::numeric_limits<float>::epsilon();
    CHECK(std::abs(static_cast<double>(score.logprob) - (static_cast<double>(row[0]) - max - std::log(sum))) <
          tolerance);
    REQUIRE(score.top.size() == std::min<std::size_t>(20, size));
    for (std::size_t i = 0; i < score.top.size(); ++i) CHECK(score.top[i].token == order[i]);
  }
}

}  // namespace
}  // namespace genai::sampling
