#pragma once

#include "genai/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace genai::grammar {

enum class Kind {
  kJsonSchema,
  kRegex,  ///< Rust's syntax
  kLark,   ///< llguidance's dialect
};

/// llguidance's own name for a kind: "json_schema", "regex" or "lark".
inline const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kJsonSchema:
      return "json_schema";
    case Kind::kRegex:
      return "regex";
    case Kind::kLark:
      return "lark";
  }
  return "";
}

constexpr std::size_t kMaxForcedTokens = 256;

/// A matcher of llguidance, whichever way it is called. One thread at a time, but for clone(). Once a call has failed
/// the matcher is of no use any more.
class LlgMatcher {
 public:
  virtual ~LlgMatcher() = default;

  /// Why it is of no use any more, in llguidance's words; nullopt as long as it is.
  virtual std::optional<std::string> error() = 0;
  /// Fills the words of a bitmask over all tokens of the tokenizer: those that may come next. False when it fails.
  virtual bool compute_mask(std::span<std::uint32_t> words) = 0;
  /// Goes on by tokens, in order. False when it fails.
  virtual bool consume(std::span<const TokenId> tokens) = 0;
  /// Takes the last `count` tokens back. False when it fails.
  virtual bool rollback(std::size_t count) = 0;
  /// Tokens that must come next; more than kMaxForcedTokens are not needed.
  virtual std::vector<TokenId> forced_tokens() = 0;
  virtual bool is_accepting() = 0;
  virtual bool is_stopped() = 0;
  /// One at the same place, which goes on by itself. From any thread while nothing else is called.
  virtual std::unique_ptr<LlgMatcher> clone() const = 0;
};

/// A vocabulary as llguidance keeps it. Thread-safe.
class LlgTokenizer {
 public:
  virtual ~LlgTokenizer() = default;
  /// A matcher at the beginning of a grammar; its error() says what is wrong with the grammar. `max_items_in_row`: the
  /// work that a place of the grammar may make. Takes up to a second.
  virtual std::unique_ptr<LlgMatcher> new_matcher(Kind kind, const std::string& source,
                                                  std::size_t max_items_in_row) const = 0;
};

/// What a tokenizer is made of.
struct LlgVocabulary {
  std::vector<std::string> tokens;  ///< their bytes; those of a token that is no text have 0xFF before them
  std::vector<TokenId> eos_ids;     ///< at least one
  /// Writes a text as tokens; may be empty, and then nothing is forced. Called from any thread; throws nothing.
  std::function<std::vector<TokenId>(const std::string& text)> tokenize;
};

/// A way to call llguidance. Thread-safe.
class Llguidance {
 public:
  virtual ~Llguidance() = default;
  /// Throws kBadPackage when the vocabulary cannot be used. Takes some 100 ms for large ones.
  virtual std::shared_ptr<const LlgTokenizer> make_tokenizer(LlgVocabulary vocabulary) const = 0;
};

}  // namespace genai::grammar
