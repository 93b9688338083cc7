#pragma once

#include "genai/base/error.h"
#include "genai/base/random.h"
#include "genai/core/constraint.h"
#include "genai/engine/fake_model.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace genai::engine {

/// A grammar for tests, without any library: for each place the tokens that may stand there. Behind the last place
/// nothing may follow.
class FakeGrammar final : public TokenGrammar {
 public:
  using Places = std::vector<std::vector<TokenId>>;

  struct Options {
    std::vector<TokenId> eos_ids = {};  ///< allowed at the places of may_end
    std::vector<std::size_t> may_end = {};
    bool forces = true;           ///< whether forced_tokens() tells what must come
    std::int64_t fails_at = -1;   ///< place whose bitmask cannot be computed
    std::int64_t breaks_at = -1;  ///< place behind which accept() fails
  };

  FakeGrammar(Places places, Options options) : places_(std::move(places)), options_(std::move(options)) {}

  /// Some places with one token and some with many; depends on the seed alone.
  static std::shared_ptr<const FakeGrammar> random(int seed, std::vector<TokenId> eos_ids, bool forces = true) {
    std::uint64_t count = 0;
    const auto draw = [&](int limit) {
      return static_cast<int>(uniform_at(static_cast<std::uint64_t>(seed), 9, count++) * limit);
    };
    Places places(static_cast<std::size_t>(1 + draw(14)));
    Options options{.eos_ids = std::move(eos_ids), .forces = forces};
    for (std::size_t i = 0; i < places.size(); ++i) {
      const int num_tokens = draw(2) == 0 ? 1 : 1 + draw(9);
      for (int k = 0; k < num_tokens; ++k) {
        const TokenId token = draw(static_cast<int>(kFakeVocab));
        if (std::ranges::find(options.eos_ids, token) == options.eos_ids.end()) places[i].push_back(token);
      }
      if (places[i].empty()) places[i].push_back(1);
      if (i > 0 && draw(5) == 0) options.may_end.push_back(i);
    }
    return std::make_shared<FakeGrammar>(std::move(places), std::move(options));
  }

  std::unique_ptr<TokenMatcher> make_matcher() const override { return std::make_unique<Matcher>(*this); }

  std::vector<TokenId> allowed_at(std::size_t place) const {
    std::vector<TokenId> out;
    if (place < places_.size()) out = places_[place];
    if (may_end(place)) out.insert(out.end(), options_.eos_ids.begin(), options_.eos_ids.end());
    return out;
  }

  std::size_t size() const { return places_.size(); }

  static inline std::atomic<int> num_matchers{0};  ///< that live
  static inline std::atomic<int> num_bitmasks{0};  ///< that were computed

 private:
  class Matcher final : public TokenMatcher {
   public:
    explicit Matcher(const FakeGrammar& grammar) : grammar_(grammar) { ++num_matchers; }
    Matcher(const Matcher& other) : grammar_(other.grammar_), place_(other.place_) { ++num_matchers; }
    Matcher& operator=(const Matcher&) = delete;
    ~Matcher() override { --num_matchers; }

    void fill_bitmask(std::span<std::uint32_t> bitmask) override {
      check(bitmask.size() == bitmask_words(kFakeVocab), "a bitmask has the wrong size");
      ++num_bitmasks;
      if (static_cast<std::int64_t>(place_) == grammar_.options_.fails_at) {
        throw Error(ErrorCode::kBackend, "fake grammar failure");
      }
      std::ranges::fill(bitmask, 0U);
      for (const TokenId token : grammar_.allowed_at(place_)) {
        bitmask[static_cast<std::size_t>(token) / 32] |= std::uint32_t{1} << (token % 32);
      }
    }
    void accept(std::span<const TokenId> tokens) override {
      for (const TokenId token : tokens) {
        const std::vector<TokenId> allowed = grammar_.allowed_at(place_);
        check(std::ranges::find(allowed, token) != allowed.end(), "a token that the fake grammar does not allow");
        if (static_cast<std::int64_t>(place_) == grammar_.options_.breaks_at) throw std::bad_alloc();
        const bool ends = std::ranges::find(grammar_.options_.eos_ids, token) != grammar_.options_.eos_ids.end();
        place_ = ends ? grammar_.size() : place_ + 1;
      }
    }
    std::unique_ptr<TokenMatcher> clone() const override { return std::make_unique<Matcher>(*this); }
    void rollback(std::int64_t count) override { place_ -= static_cast<std::size_t>(count); }
    std::vector<TokenId> forced_tokens() override {
      std::vector<TokenId> out;
      for (std::size_t i = place_; grammar_.options_.forces && i < grammar_.size(); ++i) {
        const std::vector<TokenId> allowed = grammar_.allowed_at(i);
        if (std::ranges::any_of(allowed, [&](TokenId token) { return token != allowed.front(); })) break;
        out.push_back(allowed.front());
      }
      return out;
    }
    bool can_end() override { return must_end() || grammar_.may_end(place_); }
    bool must_end() override { return place_ >= grammar_.size(); }

   private:
    const FakeGrammar& grammar_;
    std::size_t place_ = 0;
  };

  bool may_end(std::size_t place) const {
    return place >= places_.size() || std::ranges::find(options_.may_end, place) != options_.may_end.end();
  }

  Places places_;
  Options options_;
};

}  // namespace genai::engine
