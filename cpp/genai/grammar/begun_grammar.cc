#include "genai/grammar/begun_grammar.h"

#include "genai/base/error.h"

#include <string>
#include <utility>

namespace genai::grammar {

BegunGrammar::BegunGrammar(std::shared_ptr<const TokenGrammar> whole, std::vector<TokenId> written)
    : whole_(std::move(whole)), written_(std::move(written)) {
  try {
    make_matcher();
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                "the grammar does not allow the tokens that it is said to begin with: " + std::string(error.what()));
  }
}

std::unique_ptr<TokenMatcher> BegunGrammar::make_matcher() const {
  std::unique_ptr<TokenMatcher> matcher = whole_->make_matcher();
  matcher->accept(written_);
  return matcher;
}

}  // namespace genai::grammar
