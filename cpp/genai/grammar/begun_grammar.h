#pragma once

#include "genai/base/ids.h"
#include "genai/core/constraint.h"

#include <memory>
#include <vector>

namespace genai::grammar {

/// A grammar of which the first tokens are already written: its matchers begin behind them.
class BegunGrammar final : public TokenGrammar {
 public:
  /// Throws kInvalidArgument when the grammar does not allow the tokens. Requires: whole is not null.
  BegunGrammar(std::shared_ptr<const TokenGrammar> whole, std::vector<TokenId> written);

  std::unique_ptr<TokenMatcher> make_matcher() const override;

 private:
  std::shared_ptr<const TokenGrammar> whole_;
  std::vector<TokenId> written_;
};

}  // namespace genai::grammar
