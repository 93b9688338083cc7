#pragma once

#include "genai/base/ids.h"
#include "genai/core/token_table.h"

#include <memory>
#include <string>
#include <vector>

namespace genai::sampling {

/// Turns ids into text piece by piece. The pieces and the flush join to exactly the one-shot decode of all ids
/// (Hugging Face `tokenizers` semantics); what later ids could still change is held back: an incomplete UTF-8 tail,
/// and with byte fallback the whole run of byte tokens, because one bad byte makes the run bad. One thread.
class Detokenizer {
 public:
  /// `table` is shared with the engine and its other sequences. `visible` special tokens are not skipped.
  Detokenizer(std::shared_ptr<const TokenTable> table, bool skip_special_tokens, std::vector<TokenId> visible = {});

  /// Valid UTF-8 that became certain with `token`; may be empty. Ids outside the table (a padded vocabulary) give "".
  std::string append(TokenId token);

  /// The held-back rest; incomplete bytes become U+FFFD. Call once, at the end.
  std::string flush();

 private:
  std::string take_certain(bool at_end);

  std::shared_ptr<const TokenTable> table_;
  bool skip_special_tokens_;
  std::vector<TokenId> visible_;  ///< sorted
  bool has_tokens_ = false;       ///< an id that counts was appended
  bool may_strip_;                ///< nothing was emitted yet, and the first-space rule holds
  std::string pending_;           ///< bytes not yet emitted
  std::string byte_run_;          ///< run of byte-fallback tokens not yet decoded
};

}  // namespace genai::sampling
