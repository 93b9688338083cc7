#include "genai/grammar/compiler.h"

#include "genai/base/error.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

namespace genai::grammar {
namespace {

constexpr std::array<const char*, 3> kNames = {"JSON schema", "regular expression", "Lark grammar"};
constexpr std::size_t kMaxSourceBytes = std::size_t{4} << 20;
constexpr std::size_t kMaxErrorChars = 800;
/// Marks the bytes of a token that is no text.
constexpr char kSpecialMark = '\xff';
constexpr std::size_t kMaxKnownTexts = 4096;
/// Ambiguous grammars need more for each token; twice as many take four times as long, and other requests wait.
constexpr std::size_t kMaxParserItems = 1000;

std::string readable(std::string text) {
  if (const std::size_t end = text.find("\n<non-verbose/>"); end != std::string::npos) text.resize(end);
  if (text == "NoExtensionBias") text = "no token of the vocabulary can come next";
  if (text.size() > kMaxErrorChars) text = text.substr(0, kMaxErrorChars) + " ...";
  return text;
}

std::string error_text(LlgMatcher& matcher) {
  return readable(matcher.error().value_or("unknown error"));
}

/// What llguidance refuses when a matcher goes on is a matter of the grammar: too many ways to go on, or no token for
/// the only one.
std::string why_not_on(LlgMatcher& matcher) {
  return "the grammar cannot go on: " + error_text(matcher) +
         ". If it is too large, give it fewer ways to go on at one place: fewer optional properties, tools or "
         "alternatives, or shorter repetitions";
}

/// A tokenizer's results for texts, since the same texts are forced again and again. Thread-safe.
class KnownTexts {
 public:
  using Tokenize = std::function<std::vector<TokenId>(const std::string&)>;

  explicit KnownTexts(Tokenize tokenize) : tokenize_(std::move(tokenize)) {}

  /// A text that cannot be written is no tokens.
  std::vector<TokenId> tokens_of(const std::string& text) {
    try {
      {
        const std::lock_guard lock(mutex_);
        if (const auto found = known_.find(text); found != known_.end()) return found->second;
      }
      std::vector<TokenId> tokens = tokenize_(text);
      const std::lock_guard lock(mutex_);
      if (known_.size() >= kMaxKnownTexts) known_.clear();
      known_.emplace(text, tokens);
      return tokens;
    } catch (...) {
      return {};
    }
  }

 private:
  Tokenize tokenize_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::vector<TokenId>> known_;  ///< guarded by mutex_
};

LlgVocabulary llg_vocabulary(const Vocabulary& vocabulary) {
  const TokenTable& table = *vocabulary.table;
  LlgVocabulary out;
  out.tokens.reserve(table.size() + 1);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string& text = table.bytes[i];
    const bool special = table.kinds[i] == TokenTable::Kind::kSpecial && !text.empty();
    out.tokens.push_back(special ? kSpecialMark + text : text);
  }
  const auto size = static_cast<TokenId>(table.size());
  std::ranges::copy_if(vocabulary.eos_ids, std::back_inserter(out.eos_ids),
                       [&](TokenId id) { return id >= 0 && id < size; });
  if (out.eos_ids.empty()) {  // an end token is made up, which no model can write
    out.eos_ids.push_back(size);
    out.tokens.emplace_back();
  }
  if (vocabulary.tokenize) {
    out.tokenize = [known = std::make_shared<KnownTexts>(vocabulary.tokenize)](const std::string& text) {
      return known->tokens_of(text);
    };
  }
  return out;
}

/// How many tokens llguidance's bitmasks have, and how many of them the model's tokenizer has.
struct Sizes {
  std::int64_t num_tokens;
  std::int64_t vocab_size;
};

class Matcher final : public TokenMatcher {
 public:
  /// `tokenizer` must outlive the matcher.
  Matcher(std::shared_ptr<const LlgTokenizer> tokenizer, std::unique_ptr<LlgMatcher> matcher, Sizes sizes)
      : tokenizer_(std::move(tokenizer)), matcher_(std::move(matcher)), sizes_(sizes) {}

  void fill_bitmask(std::span<std::uint32_t> bitmask) override {
    check(bitmask.size() == bitmask_words(sizes_.vocab_size), "a bitmask has the wrong size");
    std::span<std::uint32_t> target = bitmask;
    if (bitmask_words(sizes_.num_tokens) != bitmask.size()) {  // one word more, for a made-up end token
      wide_.resize(bitmask_words(sizes_.num_tokens));
      target = wide_;
    }
    if (!matcher_->compute_mask(target)) throw Error(ErrorCode::kInvalidArgument, why_not_on(*matcher_));
    if (target.data() != bitmask.data()) std::copy_n(target.begin(), bitmask.size(), bitmask.begin());
    const std::int64_t rest = sizes_.vocab_size % 32;
    if (rest != 0) bitmask.back() &= (std::uint32_t{1} << rest) - 1U;
  }

  void accept(std::span<const TokenId> tokens) override {
    if (!matcher_->consume(tokens)) throw Error(ErrorCode::kInvalidArgument, why_not_on(*matcher_));
  }

  void rollback(std::int64_t count) override {
    if (!matcher_->rollback(static_cast<std::size_t>(count))) {
      throw Error(ErrorCode::kInternal, "a grammar cannot be rolled back: " + error_text(*matcher_));
    }
  }

  std::unique_ptr<TokenMatcher> clone() const override {
    return std::make_unique<Matcher>(tokenizer_, matcher_->clone(), sizes_);
  }

  std::vector<TokenId> forced_tokens() override {
    std::vector<TokenId> tokens = matcher_->forced_tokens();
    if (tokens.size() > kMaxForcedTokens) tokens.resize(kMaxForcedTokens);
    return tokens;
  }

  bool can_end() override { return matcher_->is_accepting(); }
  bool must_end() override { return matcher_->is_stopped(); }

 private:
  std::shared_ptr<const LlgTokenizer> tokenizer_;
  std::unique_ptr<LlgMatcher> matcher_;
  Sizes sizes_;
  std::vector<std::uint32_t> wide_;
};

/// A matcher at the beginning, which is cloned.
class Grammar final : public TokenGrammar {
 public:
  Grammar(std::shared_ptr<const LlgTokenizer> tokenizer, std::unique_ptr<const LlgMatcher> prototype, Sizes sizes)
      : tokenizer_(std::move(tokenizer)), prototype_(std::move(prototype)), sizes_(sizes) {}

  std::unique_ptr<TokenMatcher> make_matcher() const override {
    return std::make_unique<Matcher>(tokenizer_, prototype_->clone(), sizes_);
  }

 private:
  std::shared_ptr<const LlgTokenizer> tokenizer_;
  std::unique_ptr<const LlgMatcher> prototype_;
  Sizes sizes_;
};

void check_source(const std::string& name, const std::string& source) {
  if (source.size() > kMaxSourceBytes) {
    throw Error(ErrorCode::kInvalidArgument, "the " + name + " has " + std::to_string(source.size()) +
                                                 " bytes; allowed: up to " + std::to_string(kMaxSourceBytes));
  }
  if (source.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument, "the " + name + " has a NUL character");
  }
}

}  // namespace

Compiler::Compiler(const Llguidance& llguidance, const Vocabulary& vocabulary, CacheLimits limits) : limits_(limits) {
  if (!vocabulary.table || vocabulary.table->size() == 0) {
    throw Error(ErrorCode::kBadPackage, "structured output needs a tokenizer, and this package has none");
  }
  LlgVocabulary tokens = llg_vocabulary(vocabulary);
  vocab_size_ = static_cast<std::int64_t>(vocabulary.table->size());
  num_tokens_ = std::ssize(tokens.tokens);
  tokenizer_ = llguidance.make_tokenizer(std::move(tokens));
}

std::size_t Compiler::num_cached() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::shared_ptr<const TokenGrammar> Compiler::compile(Kind kind, const std::string& source) {
  const std::string name = kNames[static_cast<std::size_t>(kind)];
  check_source(name, source);
  const std::string key = std::string(name_of(kind)) + '\0' + source;
  if (std::shared_ptr<const TokenGrammar> found = find(key)) return found;
  std::unique_ptr<LlgMatcher> matcher = tokenizer_->new_matcher(kind, source, kMaxParserItems);
  if (matcher->error()) {
    throw Error(ErrorCode::kInvalidArgument, "the " + name + " is refused: " + error_text(*matcher));
  }
  // The first bitmask, so that a grammar that no answer fits, or that is too wide to begin, is refused before anything
  // runs; and as it may take seconds, the clones take it over.
  std::vector<std::uint32_t> bitmask(bitmask_words(num_tokens_));
  if (!matcher->compute_mask(bitmask)) {
    throw Error(ErrorCode::kInvalidArgument, "the " + name + " is refused: " + why_not_on(*matcher));
  }
  return keep(key, std::make_shared<const Grammar>(tokenizer_, std::move(matcher),
                                                   Sizes{.num_tokens = num_tokens_, .vocab_size = vocab_size_}));
}

std::shared_ptr<const TokenGrammar> Compiler::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().second;
}

/// Returns the grammar, or the one that another thread has kept under the same key meanwhile.
std::shared_ptr<const TokenGrammar> Compiler::keep(const std::string& key,
                                                   std::shared_ptr<const TokenGrammar> grammar) {
  std::list<Entry> forgotten;  // freed without the lock: that may have to wait for another one
  const std::lock_guard lock(mutex_);
  if (const auto found = index_.find(key); found != index_.end()) return found->second->second;
  entries_.emplace_front(key, grammar);
  index_.emplace(key, entries_.begin());
  text_bytes_ += key.size();
  while (entries_.size() > 1 && (entries_.size() > limits_.max_grammars || text_bytes_ > limits_.max_text_bytes)) {
    text_bytes_ -= entries_.back().first.size();
    index_.erase(entries_.back().first);
    forgotten.splice(forgotten.begin(), entries_, std::prev(entries_.end()));
  }
  return grammar;
}

}  // namespace genai::grammar
