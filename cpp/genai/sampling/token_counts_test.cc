#include "genai/sampling/token_counts.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

namespace genai::sampling {
namespace {

using Counts = std::map<TokenId, std::pair<std::uint32_t, std::uint32_t>>;

Counts shown(const TokenCounts& counts) {
  Counts out;
  for (const TokenCounts::Entry& entry : counts.entries()) {
    if (entry.total > 0) out[entry.token] = {entry.total, entry.generated};
  }
  return out;
}

TEST_CASE("TokenCounts_PromptAndOutput_AreCountedApart") {
  TokenCounts counts;

  counts.update(std::vector<TokenId>{5, 6, 5, 5, 7}, 3);

  CHECK(shown(counts) == Counts{{5, {3, 1}}, {6, {1, 0}}, {7, {1, 1}}});
}

TEST_CASE("TokenCounts_SequenceIsRewound_UncountsWhatIsGone") {
  TokenCounts counts;
  counts.update(std::vector<TokenId>{1, 2, 3, 4}, 2);

  counts.update(std::vector<TokenId>{1, 2, 4}, 2);

  CHECK(shown(counts) == Counts{{1, {1, 0}}, {2, {1, 0}}, {4, {1, 1}}});
}

TEST_CASE("TokenCounts_AnyGrowthAndRewind_EqualsCountingAfresh") {
  std::mt19937 random(2);
  std::vector<TokenId> tokens = {0, 1, 2};
  TokenCounts counts;
  for (int round = 0; round < 300; ++round) {
    if (random() % 3 == 0) tokens.resize(3 + random() % (tokens.size() - 2));
    for (std::size_t i = random() % 20; i > 0; --i) tokens.push_back(static_cast<TokenId>(random() % 5000));

    counts.update(tokens, 3);

    TokenCounts fresh;
    fresh.update(tokens, 3);
    REQUIRE(shown(counts) == shown(fresh));
  }
}

}  // namespace
}  // namespace genai::sampling
