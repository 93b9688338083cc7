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

/// Nothing may follow: the answer is complete, also where the last token has used up the length limit.
void stop(SequenceOutput& output, Event& event) {
  if (event.finish == FinishReason::kLength) {
    event.finish = FinishReason::kStop;
  } else {
    output.stop_here(event);
  }
}

}  // namespace

GrammarState::GrammarState(const TokenGrammar& grammar, std::int64_t num_tokens)
    : matcher_(grammar.make_matcher()), bitmask_(bitmask_words(num_tokens), 0) {}

bool GrammarState::allows(TokenId token) const {
  const auto id = static_cast<std::size_t>(token);
  return id / 32 < bitmask_.size() && (bitmask_[id / 32] >> (id % 32) & 1U) != 0;
}

std::vector<TokenId> GrammarState::advance(TokenId token, std::int64_t room, SequenceOutput& output, Event& event) {
  if (!allows(token)) {
    throw Error(ErrorCode::kInvalidArgument, "token " + std::to_string(token) +
                                                 " was chosen by forced_tokens or by a sampler, but the grammar does "
                                                 "not allow it there; leave out the one or the other");
  }
  if (event.finish && event.finish != FinishReason::kLength) return {};
  matcher_->accept({&token, 1});
  std::vector<TokenId> forced;
  if (!event.finish && !matcher_->must_end() && room > 0) {
    for (const TokenId next : matcher_->forced_tokens()) {
      matcher_->accept({&next, 1});
      forced.push_back(next);
      const bool is_last = static_cast<std::int64_t>(forced.size()) == room;
      join(event, output.append(next, std::nullopt, is_last));
      if (event.finish || is_last) break;
    }
  }
  if (matcher_->must_end()) stop(output, event);
  return forced;
}

}  // namespace genai::engine
