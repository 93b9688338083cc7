#include "genai/grammar/begun_grammar.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace genai::grammar {
namespace {

/// One of two tokens, then one, then one of two.
class ThreePlaces final : public TokenGrammar {
 public:
  std::unique_ptr<TokenMatcher> make_matcher() const override { return std::make_unique<Matcher>(); }

 private:
  struct Matcher final : TokenMatcher {
    std::array<std::uint32_t, 4> allowed = {1U << 1U | 1U << 2U, 1U << 3U, 1U << 4U | 1U << 5U, 0U};
    std::size_t place = 0;

    void fill_bitmask(std::span<std::uint32_t> bitmask) override { bitmask[0] = allowed.at(place); }
    void accept(std::span<const TokenId> tokens) override {
      for (const TokenId token : tokens) {
        if ((allowed.at(place) >> token & 1U) == 0) throw Error(ErrorCode::kBackend, "not allowed");
        ++place;
      }
    }
    std::unique_ptr<TokenMatcher> clone() const override { return std::make_unique<Matcher>(*this); }
    void rollback(std::int64_t count) override { place -= static_cast<std::size_t>(count); }
    std::vector<TokenId> forced_tokens() override { return {}; }
    bool can_end() override { return must_end(); }
    bool must_end() override { return place == 3; }
  };
};

std::shared_ptr<const TokenGrammar> three_places() {
  return std::make_shared<ThreePlaces>();
}

}  // namespace

TEST_CASE("A begun grammar goes on behind what is written, for each matcher anew") {
  const BegunGrammar grammar(three_places(), {2, 3});

  for (int again = 0; again < 2; ++again) {
    std::array<std::uint32_t, 1> bitmask{};
    const auto matcher = grammar.make_matcher();
    CHECK_FALSE(matcher->must_end());
    matcher->fill_bitmask(bitmask);
    CHECK(bitmask[0] == (1U << 4U | 1U << 5U));
    matcher->accept(std::array<TokenId, 1>{5});
    CHECK(matcher->must_end());
  }
  CHECK(BegunGrammar(three_places(), {1, 3, 4}).make_matcher()->must_end());
}

TEST_CASE("What the grammar does not allow cannot be its beginning") {
  try {
    const BegunGrammar grammar(three_places(), {2, 9});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
  }
}

}  // namespace genai::grammar
