#include "genai/spec/ngram_proposer.h"

#include "genai/base/error.h"
#include "genai/base/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using genai::TokenId;
using genai::spec::DraftStyle;
using genai::spec::NgramProposer;
using Tokens = std::vector<TokenId>;

namespace {

NgramProposer proposer_of(std::size_t order, const Tokens& tokens) {
  NgramProposer proposer(order);
  proposer.extend(tokens);
  return proposer;
}

/// What a copied draft is, by looking at every place.
Tokens copied(std::size_t order, const Tokens& tokens, std::size_t limit) {
  const std::size_t context = order - 1;
  if (tokens.size() < order) return {};
  for (std::size_t next = tokens.size() - 1; next >= context; --next) {
    const auto at = [&](std::size_t position) { return tokens.begin() + static_cast<std::ptrdiff_t>(position); };
    if (std::equal(at(next - context), at(next), at(tokens.size() - context))) {
      return {at(next), at(std::min(tokens.size(), next + limit))};
    }
  }
  return {};
}

}  // namespace

// The table is that of onnxruntime-genai's own tests of its lookup.
TEST_CASE("NgramProposer_TableOfHistories_CopiesWhatFollowedTheLatestPlace") {
  CHECK(proposer_of(3, {1, 2, 3}).propose(4, DraftStyle::kCopied).empty());
  CHECK(proposer_of(3, {1, 2, 3, 1, 2}).propose(3, DraftStyle::kCopied) == Tokens{3, 1, 2});
  CHECK(proposer_of(3, {1, 2, 7, 1, 2, 8, 1, 2}).propose(1, DraftStyle::kCopied) == Tokens{8});
  CHECK(proposer_of(2, {4, 4, 4}).propose(2, DraftStyle::kCopied) == Tokens{4});
  CHECK(proposer_of(3, {1, 2, 3, 4, 1, 2}).propose(2, DraftStyle::kCopied) == Tokens{3, 4});
  CHECK(proposer_of(3, {1, 2, 3, 4, 1, 2}).propose(10, DraftStyle::kCopied) == Tokens{3, 4, 1, 2});
}

TEST_CASE("NgramProposer_Chained_LooksEachTokenUpAgain") {
  const NgramProposer chain = proposer_of(3, {1, 2, 3, 8, 2, 3, 4, 8, 3, 4, 5, 8, 1, 2});
  CHECK(chain.propose(3, DraftStyle::kCopied) == Tokens{3, 8, 2});
  CHECK(chain.propose(3, DraftStyle::kChained) == Tokens{3, 4, 5});
  CHECK(proposer_of(2, {1, 2, 1, 2}).propose(9, DraftStyle::kChained) == Tokens{1, 2, 1, 2, 1, 2, 1, 2, 1});
}

TEST_CASE("NgramProposer_ShortHistoriesAndLimits_GiveNothing") {
  CHECK(NgramProposer(3).propose(4, DraftStyle::kCopied).empty());
  CHECK(NgramProposer(3).propose(4, DraftStyle::kChained).empty());
  CHECK(proposer_of(3, {1}).propose(4, DraftStyle::kCopied).empty());
  CHECK(proposer_of(3, {1, 2, 3, 1, 2}).propose(0, DraftStyle::kChained).empty());
  CHECK_THROWS_AS(NgramProposer(1), genai::Error);
  CHECK_THROWS_AS(NgramProposer(0), genai::Error);
}

TEST_CASE("NgramProposer_TruncatedAndExtendedInAnyOrder_EqualsANewOne") {
  for (const std::size_t order : {2, 3, 5}) {
    std::uint64_t draw = 0;
    const auto next = [&](std::size_t below) {
      return static_cast<std::size_t>(genai::uniform_at(7, order, draw++) * static_cast<double>(below));
    };
    NgramProposer proposer(order);
    Tokens tokens;
    for (int step = 0; step < 2000; ++step) {
      if (next(4) == 0) {
        tokens.resize(next(tokens.size() + 1));
        proposer.truncate(tokens.size());
      } else {
        Tokens more(next(6));
        for (TokenId& token : more) token = static_cast<TokenId>(next(3));
        tokens.insert(tokens.end(), more.begin(), more.end());
        proposer.extend(more);
      }
      REQUIRE(proposer.size() == tokens.size());
      REQUIRE(proposer.propose(7, DraftStyle::kCopied) == copied(order, tokens, 7));
    }
  }
}
