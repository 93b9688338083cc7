#include "genai/embed/pooling.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace genai::embed {
namespace {

// Three tokens of two values.
constexpr std::array<float, 6> kTokens = {1, -4, 5, 2, 3, -7};

std::vector<float> pooled(Pooling pooling, std::span<const float> tokens, std::size_t num_skipped = 0) {
  std::vector<float> out(2);
  pool(pooling, tokens, num_skipped, out);
  return out;
}

}  // namespace

TEST_CASE("Pool_ThreeTokens_GivesWhatIsComputedByHand") {
  CHECK(pooled(Pooling::kMean, kTokens) == std::vector<float>{3, -3});
  CHECK(pooled(Pooling::kCls, kTokens) == std::vector<float>{1, -4});
  CHECK(pooled(Pooling::kLast, kTokens) == std::vector<float>{3, -7});
  CHECK(pooled(Pooling::kMax, kTokens) == std::vector<float>{5, 2});
  // (1 * 1 + 2 * 5 + 3 * 3) / 6, (1 * -4 + 2 * 2 + 3 * -7) / 6
  CHECK(pooled(Pooling::kWeightedMean, kTokens) == std::vector<float>{20.0F / 6, -21.0F / 6});
  CHECK(pooled(Pooling::kMeanSqrt, kTokens) ==
        std::vector<float>{static_cast<float>(9 / std::sqrt(3.0)), static_cast<float>(-9 / std::sqrt(3.0))});
}

TEST_CASE("Pool_SkippedTokens_AreLeftOutOfMeansAndMaximumOnly") {
  CHECK(pooled(Pooling::kMean, kTokens, 1) == std::vector<float>{4, -2.5F});
  CHECK(pooled(Pooling::kMax, kTokens, 2) == std::vector<float>{3, -7});
  CHECK(pooled(Pooling::kWeightedMean, kTokens, 1) == std::vector<float>{19.0F / 5, -17.0F / 5});
  CHECK(pooled(Pooling::kCls, kTokens, 2) == std::vector<float>{1, -4});
  CHECK(pooled(Pooling::kLast, kTokens, 1) == std::vector<float>{3, -7});
}

TEST_CASE("Pool_AllTokensSkipped_LeavesNoneOut") {
  CHECK(pooled(Pooling::kMean, kTokens, 3) == pooled(Pooling::kMean, kTokens));
}

TEST_CASE("Pool_OneToken_IsThatToken") {
  const std::array<float, 2> one = {7, -8};
  for (const Pooling pooling :
       {Pooling::kMean, Pooling::kCls, Pooling::kMax, Pooling::kLast, Pooling::kWeightedMean, Pooling::kMeanSqrt}) {
    CHECK(pooled(pooling, one) == std::vector<float>{7, -8});
  }
}

TEST_CASE("Pool_MeanOfManyTokens_LosesNothingToTheOrderOfSums") {
  // In float32 the small ones would vanish beside the large one.
  std::vector<float> tokens = {1e8F, 0};
  for (int i = 0; i < 1000; ++i) tokens.insert(tokens.end(), {1, 0});
  tokens.insert(tokens.end(), {-1e8F, 0});

  CHECK(pooled(Pooling::kMean, tokens)[0] == static_cast<float>(1000.0 / 1002.0));
}

TEST_CASE("Pool_NotANumber_StaysInTheMaximum") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(pooled(Pooling::kMax, std::array<float, 4>{1, 2, nan, 3})[0]));
  CHECK(std::isnan(pooled(Pooling::kMax, std::array<float, 4>{nan, 2, 1, 3})[0]));
}

}  // namespace genai::embed
