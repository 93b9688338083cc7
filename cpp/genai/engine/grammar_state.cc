#include "genai/engine/grammar_state.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace genai::engine {
namespace {

/// Joins the event of a token that follows at once.
void join(Event& event, Event next) {
  event.text += next.text;
  std::ranges::move(next.tokens, std::back_inserter(event.tokens));
  event.finish = next.finish;
  event.stop_index = next.stop_index;
  event.stop_token = next.stop_token;
}

/// With more room than this an answer is left alone: ends are shorter.
constexpr std::int64_t kClosingRoom = 256;
/// An answer is its own until the room is that of its end and so many tokens more, in which it may come to an end that
/// is not foreseen.
constexpr std::int64_t kReserve = 16;
/// Where no end is found, which mostly stays so, the next look is at half of the room, and is one walk. In the last
/// tokens it is after a quarter of them: an end that was hidden may come into sight any time.
constexpr std::int64_t kLastTokens = 32;
/// The first look of all, and the first one in the last tokens, also try other walks; where there is little room from
/// the start, many of them.
constexpr std::int64_t kLittleRoom = 64;
constexpr std::int64_t kSomeEffort = 96;
constexpr std::int64_t kLastEffort = 96;

}  // namespace

GrammarState::GrammarState(const TokenGrammar& grammar, const Facts& facts)
    : facts_(facts),
      matcher_(grammar.make_matcher()),
      bitmask_(bitmask_words(facts.num_tokens), 0),
      look_room_(kClosingRoom) {}

bool GrammarState::allows(TokenId token) const {
  const auto id = static_cast<std::size_t>(token);
  return id / 32 < bitmask_.size() && (bitmask_[id / 32] >> (id % 32) & 1U) != 0;
}

/// Whether there is room for little more than an end, which is then known. Looks seldom as long as there is not.
bool GrammarState::must_end_soon(std::int64_t room) {
  if (room > look_room_) return false;
  if (!end_) {
    const bool is_first = num_vain_looks_ == 0;
    const bool is_first_of_last = room <= kLastTokens && !looked_at_last_;
    looked_at_last_ = room <= kLastTokens;
    std::int64_t effort = is_first_of_last ? kLastEffort : 0;
    if (is_first) effort = room <= kLittleRoom ? grammar::Closing::kThorough : kSomeEffort;
    end_ = facts_.closing->find_end(*matcher_, {.max_tokens = is_first ? room : std::min(room, kLastTokens),
                                                .good_tokens = room - kReserve - 1,
                                                .effort = effort});
  }
  if (!end_) {
    ++num_vain_looks_;
    look_room_ = room > kLastTokens ? std::max(room / 2, kLastTokens) : room - std::max<std::int64_t>(1, room / 4);
    return false;
  }
  num_vain_looks_ = 0;
  const std::int64_t free = room - std::ssize(*end_) - kReserve;
  if (free <= 0) return true;
  look_room_ = room - (free + 1) / 2;
  end_.reset();
  return false;
}

/// Whether there is room for an end behind more tokens, which the grammar allows; it is then known.
bool GrammarState::can_end_behind(std::span<const TokenId> tokens, std::int64_t room) {
  if (end_->size() >= tokens.size() && std::ranges::equal(tokens, std::span(*end_).first(tokens.size()))) {
    end_->erase(end_->begin(), end_->begin() + std::ssize(tokens));
    return true;
  }
  const std::unique_ptr<TokenMatcher> after = matcher_->clone();
  after->accept(tokens);
  if (after->can_end() || after->must_end()) {
    end_->clear();
    return true;
  }
  if (std::ssize(*end_) <= room && grammar::ends_after(*after, *end_)) return true;
  std::optional<std::vector<TokenId>> other =
      facts_.closing->find_end(*after, {.max_tokens = room, .good_tokens = room});
  if (!other) return false;
  end_ = std::move(other);
  return true;
}

TokenId GrammarState::settle(TokenId token, std::int64_t room) {
  if (!steered_) {
    if (facts_.closing == nullptr || !allows(token) || !must_end_soon(room + 1)) return token;
    if (can_end_behind({&token, 1}, room)) return token;
    if (end_->empty()) {  // it may end here, but not behind the token
      const auto eos = std::ranges::find_if(facts_.eos_ids, [&](TokenId id) { return allows(id); });
      if (eos == facts_.eos_ids.end()) return token;
      end_->push_back(*eos);
    }
    steered_ = true;
  }
  const TokenId instead = end_->front();
  end_->erase(end_->begin());
  return instead;
}

/// What must follow, up to `room` tokens: by the grammar, if an end that is known can still be reached, or to the end.
std::vector<TokenId> GrammarState::forced(std::int64_t room) {
  if (room <= 0) return {};
  if (steered_) return std::exchange(*end_, {});
  std::vector<TokenId> tokens = matcher_->forced_tokens();
  if (std::ssize(tokens) > room) tokens.resize(static_cast<std::size_t>(room));
  if (tokens.empty() || !end_ || can_end_behind(tokens, room - std::ssize(tokens))) return tokens;
  return {};
}

/// The answer is complete, also where the last token has used up the length limit. One that was steered was cut.
void GrammarState::finish(SequenceOutput& output, Event& event) const {
  if (event.finish == FinishReason::kLength && !steered_) event.finish = FinishReason::kStop;
  output.stop_here(event);
  const bool by_caller = event.stop_index || event.stop_token;
  if (steered_ && event.finish == FinishReason::kStop && !by_caller) event.finish = FinishReason::kLength;
}

std::vector<TokenId> GrammarState::advance(TokenId token, std::int64_t room, SequenceOutput& output, Event& event) {
  if (!allows(token)) {
    throw Error(ErrorCode::kInvalidArgument, "token " + std::to_string(token) +
                                                 " was chosen by forced_tokens or by a sampler, but the grammar does "
                                                 "not allow it there; leave out the one or the other");
  }
  if (event.finish && event.finish != FinishReason::kLength) {
    finish(output, event);
    return {};
  }
  matcher_->accept({&token, 1});
  std::vector<TokenId> written;
  if (!event.finish && !matcher_->must_end()) {
    for (const TokenId next : forced(room)) {
      matcher_->accept({&next, 1});
      written.push_back(next);
      const bool is_last = std::ssize(written) == room;
      join(event, output.append(next, std::nullopt, is_last));
      if (event.finish || is_last) break;
    }
  }
  if (matcher_->must_end() || (steered_ && end_->empty())) finish(output, event);
  return written;
}

}  // namespace genai::engine
