#pragma once

#include "genai/base/ids.h"
#include "genai/core/constraint.h"
#include "genai/core/token_table.h"
#include "genai/grammar/llguidance.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace genai::grammar {

/// Which tokens there are.
struct Vocabulary {
  std::shared_ptr<const TokenTable> table;
  /// Writes a text (valid UTF-8) as the tokenizer would in the middle of a text, without special tokens around it;
  /// called from any thread, and its results are remembered. Without it nothing is forced ahead.
  std::function<std::vector<TokenId>(const std::string& text)> tokenize;
  std::vector<TokenId> eos_ids;
};

/// How many compiled grammars are kept; beyond that the least recently used ones are forgotten. What one takes cannot
/// be asked: mostly below 1 MB, up to 30 MB for a short one, and up to 300 times the size of a long source.
struct CacheLimits {
  std::size_t max_grammars = 32;
  std::size_t max_text_bytes = std::size_t{1} << 20;  ///< sum of the grammars' sources
};

/// Compiles grammars for one vocabulary and remembers them. Thread-safe; compiling takes from microseconds to a second,
/// so it happens on the caller's thread and never in the engine's.
class Compiler {
 public:
  /// Throws kBadPackage when the vocabulary cannot be used. Reading a large vocabulary takes some 100 ms.
  Compiler(const Llguidance& llguidance, const Vocabulary& vocabulary, CacheLimits limits = {});
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  /// Returns the compiled grammar. Throws kInvalidArgument when it is wrong, too large or not supported, with the
  /// place.
  std::shared_ptr<const TokenGrammar> compile(Kind kind, const std::string& source);

  /// Tokens that a bitmask covers.
  std::int64_t vocab_size() const { return vocab_size_; }
  std::size_t num_cached() const;

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const TokenGrammar>>;

  std::shared_ptr<const TokenGrammar> find(const std::string& key);
  std::shared_ptr<const TokenGrammar> keep(const std::string& key, std::shared_ptr<const TokenGrammar> grammar);

  std::int64_t vocab_size_;  ///< tokens of the model's tokenizer
  std::int64_t num_tokens_;  ///< and with an end token that may have been made up
  std::shared_ptr<const LlgTokenizer> tokenizer_;
  CacheLimits limits_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;                                           ///< most recently used first, guarded by mutex_
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;  ///< guarded by mutex_
  std::size_t text_bytes_ = 0;                                         ///< guarded by mutex_
};

}  // namespace genai::grammar
