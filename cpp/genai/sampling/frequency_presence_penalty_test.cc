#include "genai/sampling/frequency_presence_penalty.h"

#include <doctest/doctest.h>

#include <vector>

namespace genai::sampling {
namespace {

TEST_CASE("FrequencyPresencePenalty_PromptAndOutput_CountsOutputOnly") {
  TokenCounts counts;
  counts.update(std::vector<TokenId>{0, 1, 1, 1, 2, 99}, 2);  // prompt 0 1, then 1 1 2 and one outside the row
  std::vector<float> row = {1.0F, 1.0F, 1.0F, 1.0F};

  apply_frequency_presence_penalty(row, counts, 0.5F, 0.25F);

  CHECK(row == std::vector<float>{1.0F, -0.25F, 0.25F, 1.0F});
}

TEST_CASE("FrequencyPresencePenalty_Negative_RewardsRepeats") {
  TokenCounts counts;
  counts.update(std::vector<TokenId>{0, 1}, 1);
  std::vector<float> row = {1.0F, 1.0F};

  apply_frequency_presence_penalty(row, counts, -0.5F, -1.0F);

  CHECK(row == std::vector<float>{1.0F, 2.5F});
}

}  // namespace
}  // namespace genai::sampling
