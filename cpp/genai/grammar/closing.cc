#include "genai/grammar/closing.h"

#include "genai/base/error.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

namespace genai::grammar {
namespace {

constexpr std::size_t kShortest = 12;   ///< others of up to so many tokens are tried first, then of twice as many ...
constexpr std::size_t kNumLengths = 3;  ///< between which the effort is divided
constexpr std::size_t kMaxOpen = 256;
constexpr std::size_t kWalkCost = 3;    ///< the begin of a walk, in tokens
constexpr std::size_t kMaxOthers = 16;  ///< tokens that are tried at one place beside the best

/// In lanes, as each multiplication waits for the one before it.
std::uint64_t hash_of(std::span<const std::uint32_t> bitmask) {
  constexpr std::size_t kLanes = 8;
  std::array<std::uint64_t, kLanes> lanes{};
  for (std::size_t i = 0; i < bitmask.size(); ++i) {
    std::uint64_t& lane = lanes[i % kLanes];
    lane = (std::rotl(lane, 5) ^ bitmask[i]) * 0x9E3779B97F4A7C15U;
  }
  std::uint64_t hash = 0;
  for (const std::uint64_t lane : lanes) hash = (std::rotl(hash, 5) ^ lane) * 0x9E3779B97F4A7C15U;
  return hash;
}

class Search {
 public:
  Search(const ClosingOrder& order, const TokenMatcher& matcher, const Closing::Wish& wish)
      : order_(order),
        matcher_(matcher),
        wish_(wish),
        bitmask_(bitmask_words(static_cast<std::int64_t>(order.num_tokens()))) {}

  /// Sets best(), also when it throws.
  void run() {
    length_ = static_cast<std::size_t>(wish_.max_tokens);
    if (walk({}) && (best_->empty() || std::ssize(*best_) <= wish_.good_tokens)) return;
    if (wish_.effort == 0) return;
    num_walked_ = 0;
    const std::size_t longest = best_ ? best_->size() - 1 : length_;
    const std::deque<std::vector<TokenId>> open = std::move(open_);
    std::size_t length = kShortest;
    for (std::size_t part = 1; part <= kNumLengths; ++part, length *= 2) {
      length_ = std::min(length, longest);
      open_ = open;
      if (try_open(static_cast<std::size_t>(wish_.effort) * part / kNumLengths) || length_ == longest) return;
    }
  }

  std::optional<std::vector<TokenId>>& best() { return best_; }

 private:
  /// Walks of up to length_ tokens by what is open, until `max_walked` tokens were walked.
  bool try_open(std::size_t max_walked) {
    while (!open_.empty() && num_walked_ < max_walked) {
      std::vector<TokenId> tokens = std::move(open_.front());
      open_.pop_front();
      if (tokens.size() <= length_ && walk(std::move(tokens))) return true;
    }
    return false;
  }

  /// Goes on from the given tokens to an end, which is the best then; false when that is too far.
  bool walk(std::vector<TokenId> tokens) {
    const std::unique_ptr<TokenMatcher> matcher = matcher_.clone();
    matcher->accept(tokens);
    num_walked_ += kWalkCost;
    std::unordered_map<std::uint64_t, std::vector<TokenId>> tried;  // by bitmask: the same one again may be a circle
    while (!matcher->can_end()) {
      if (tokens.size() >= length_) return false;
      std::vector<TokenId> next = matcher->forced_tokens();
      if (next.empty()) {
        matcher->fill_bitmask(bitmask_);
        std::vector<TokenId>& before = tried[hash_of(bitmask_)];
        const std::optional<TokenId> token = order_.best(bitmask_, before);
        if (!token) return false;
        before.push_back(*token);
        open_others(tokens, *token);
        next.push_back(*token);
      }
      if (tokens.size() + next.size() > length_) return false;
      matcher->accept(next);
      num_walked_ += next.size();
      tokens.insert(tokens.end(), next.begin(), next.end());
    }
    best_ = std::move(tokens);
    return true;
  }

  void open_others(const std::vector<TokenId>& tokens, TokenId taken) {
    if (wish_.effort == 0 || open_.size() >= kMaxOpen || tokens.size() + 1 > length_) return;
    for (const TokenId other : order_.others(bitmask_, taken, kMaxOthers)) {
      open_.push_back(tokens);
      open_.back().push_back(other);
    }
  }

  const ClosingOrder& order_;
  const TokenMatcher& matcher_;
  Closing::Wish wish_;
  std::size_t length_ = 0;  ///< of the longest walk now
  std::vector<std::uint32_t> bitmask_;
  std::deque<std::vector<TokenId>> open_;  ///< beginnings of walks that are still to go
  std::size_t num_walked_ = 0;
  std::optional<std::vector<TokenId>> best_;
};

}  // namespace

std::optional<std::vector<TokenId>> Closing::find_end(const TokenMatcher& matcher, const Wish& wish) const {
  if (wish.max_tokens < 0) return std::nullopt;
  Search search(order_, matcher, wish);
  try {
    search.run();
  } catch (const Error&) {  // what comes next would be too complex
  }
  return std::move(search.best());
}

bool ends_after(const TokenMatcher& matcher, std::span<const TokenId> tokens) {
  try {
    const std::unique_ptr<TokenMatcher> copy = matcher.clone();
    copy->accept(tokens);
    return copy->can_end();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace genai::grammar
