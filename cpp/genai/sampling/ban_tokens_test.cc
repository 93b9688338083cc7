#include "genai/sampling/ban_tokens.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

namespace genai::sampling {
namespace {

TEST_CASE("BanTokens_IdsInsideAndOutside_BansThoseInside") {
  std::vector<float> row = {1.0F, 2.0F, 3.0F};

  ban_tokens(row, std::vector<TokenId>{-1, 1, 1, 3, 1000});

  CHECK(row == std::vector<float>{1.0F, -std::numeric_limits<float>::infinity(), 3.0F});
}

}  // namespace
}  // namespace genai::sampling
