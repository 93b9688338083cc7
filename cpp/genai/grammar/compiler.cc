#include "genai/grammar/compiler.h"

#include "genai/base/error.h"

#include "llguidance/abi.h"

#include <algorithm>
#include <array>
#include <span>

namespace genai::grammar {
namespace {

constexpr std::array<const char*, 3> kTypes = {"json_schema", "regex", "lark"};
constexpr std::array<const char*, 3> kNames = {"JSON schema", "regular expression", "Lark grammar"};
constexpr std::size_t kMaxSourceBytes = std::size_t{4} << 20;
constexpr std::size_t kMaxErrorChars = 800;
/// Marks the bytes of a token that is no text.
constexpr char kSpecialMark = '\xff';
constexpr std::size_t kMaxForcedTokens = 256;
constexpr std::size_t kMaxKnownTexts = 4096;
/// Ambiguous grammars need more for each token; twice as many take four times as long, and other requests wait.
constexpr std::size_t kMaxParserItems = 1000;

struct FreeMatcher {
  const llg_abi::Functions* functions;
  void operator()(llg_abi::Matcher* matcher) const { functions->free_matcher(matcher); }
};
using MatcherHandle = std::unique_ptr<llg_abi::Matcher, FreeMatcher>;

std::string error_text(const llg_abi::Functions& functions, llg_abi::Matcher* matcher) {
  const char* const text = functions.matcher_get_error(matcher);
  std::string result = text == nullptr ? "unknown error" : text;
  if (const std::size_t end = result.find("\n<non-verbose/>"); end != std::string::npos) result.resize(end);
  if (result == "NoExtensionBias") result = "no token of the vocabulary can come next";
  if (result.size() > kMaxErrorChars) result = result.substr(0, kMaxErrorChars) + " ...";
  return result;
}

/// What the library refuses when a matcher goes on is a matter of the grammar: too many ways to go on, or no token for
/// the only one.
std::string why_not_on(const llg_abi::Functions& functions, llg_abi::Matcher* matcher) {
  return "the grammar cannot go on: " + error_text(functions, matcher) +
         ". If it is too large, give it fewer ways to go on at one place: fewer optional properties, tools or "
         "alternatives, or shorter repetitions";
}

/// The table as llguidance wants it: lengths and joined bytes.
struct Tokens {
  std::vector<std::uint32_t> lengths;
  std::string bytes;
};

Tokens joined(const TokenTable& table) {
  Tokens out;
  out.lengths.reserve(table.size() + 1);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string& text = table.bytes[i];
    const bool special = table.kinds[i] == TokenTable::Kind::kSpecial && !text.empty();
    out.lengths.push_back(static_cast<std::uint32_t>(text.size() + (special ? 1 : 0)));
    if (special) out.bytes += kSpecialMark;
    out.bytes += text;
  }
  return out;
}

class LlgMatcher final : public TokenMatcher {
 public:
  LlgMatcher(std::shared_ptr<const void> owner, MatcherHandle matcher, std::int64_t vocab_size)
      : owner_(std::move(owner)), matcher_(std::move(matcher)), vocab_size_(vocab_size) {}

  void fill_bitmask(std::span<std::uint32_t> bitmask) override {
    check(bitmask.size() == bitmask_words(vocab_size_), "a bitmask has the wrong size");
    const std::size_t needed = functions().matcher_get_mask_byte_size(handle());
    std::span<std::uint32_t> target = bitmask;
    if (needed != bitmask.size_bytes()) {  // one word more, for a made-up end token
      wide_.resize(needed / sizeof(std::uint32_t));
      target = wide_;
    }
    if (functions().matcher_compute_mask_into(handle(), target.data(), needed) != 0) {
      throw Error(ErrorCode::kInvalidArgument, why_not_on(functions(), handle()));
    }
    if (target.data() != bitmask.data()) std::copy_n(target.begin(), bitmask.size(), bitmask.begin());
    const std::int64_t rest = vocab_size_ % 32;
    if (rest != 0) bitmask.back() &= (std::uint32_t{1} << rest) - 1U;
  }

  void accept(std::span<const TokenId> tokens) override {
    const std::vector<std::uint32_t> ids(tokens.begin(), tokens.end());
    if (functions().matcher_consume_tokens(handle(), ids.data(), ids.size()) != 0) {
      throw Error(ErrorCode::kInvalidArgument, why_not_on(functions(), handle()));
    }
  }

  void rollback(std::int64_t count) override {
    if (functions().matcher_rollback(handle(), static_cast<std::size_t>(count)) != 0) {
      throw Error(ErrorCode::kInternal, "a grammar cannot be rolled back: " + error_text(functions(), handle()));
    }
  }

  std::vector<TokenId> forced_tokens() override {
    std::array<std::uint32_t, kMaxForcedTokens> tokens{};
    const std::int32_t count = functions().matcher_compute_ff_tokens(handle(), tokens.data(), tokens.size());
    if (count <= 0) return {};
    return {tokens.begin(), tokens.begin() + std::min<std::ptrdiff_t>(count, kMaxForcedTokens)};
  }

  bool can_end() override { return functions().matcher_is_accepting(handle()); }
  bool must_end() override { return functions().matcher_is_stopped(handle()); }

 private:
  const llg_abi::Functions& functions() const { return *matcher_.get_deleter().functions; }
  llg_abi::Matcher* handle() const { return matcher_.get(); }

  std::shared_ptr<const void> owner_;  ///< the tokenizer
  MatcherHandle matcher_;
  std::int64_t vocab_size_;
  std::vector<std::uint32_t> wide_;
};

}  // namespace

struct Compiler::Tokenizer {
  const llg_abi::Functions* functions = nullptr;
  llg_abi::Tokenizer* handle = nullptr;
  std::int64_t vocab_size = 0;  ///< tokens of the model's tokenizer
  std::function<std::vector<TokenId>(const std::string&)> tokenize;
  mutable std::mutex mutex;
  mutable std::unordered_map<std::string, std::vector<TokenId>> known_texts;  ///< guarded by mutex

  Tokenizer(const Library& library, const Vocabulary& vocabulary)
      : functions(&library.functions()), tokenize(vocabulary.tokenize) {
    if (!vocabulary.table || vocabulary.table->size() == 0) {
      throw Error(ErrorCode::kBadPackage, "structured output needs a tokenizer, and this package has none");
    }
    vocab_size = static_cast<std::int64_t>(vocabulary.table->size());
    std::vector<std::uint32_t> eos;
    for (const TokenId id : vocabulary.eos_ids) {
      if (id >= 0 && id < vocab_size) eos.push_back(static_cast<std::uint32_t>(id));
    }
    Tokens tokens = joined(*vocabulary.table);
    if (eos.empty()) {  // an end token is made up, which no model can write
      eos.push_back(static_cast<std::uint32_t>(vocab_size));
      tokens.lengths.push_back(0);
    }
    llg_abi::TokenizerInit init{};
    init.struct_size = sizeof(init);
    init.vocab_size = static_cast<std::uint32_t>(tokens.lengths.size());
    init.eos = eos.front();
    init.eos_extra = eos.data() + 1;
    init.eos_extra_count = static_cast<std::uint32_t>(eos.size() - 1);
    init.token_lens = tokens.lengths.data();
    init.token_bytes = reinterpret_cast<const std::uint8_t*>(tokens.bytes.data());
    init.use_approximate_greedy_tokenize_fn = !tokenize;
    if (tokenize) {
      init.tokenize_fn = &tokenize_for_library;
      init.tokenize_user_data = this;
      init.tokenize_assumes_string = true;
    }
    std::array<char, 512> error{};
    handle = functions->new_tokenizer_v2(&init, error.data(), error.size());
    if (handle == nullptr) {
      throw Error(ErrorCode::kBadPackage, std::string("the vocabulary cannot be used for grammars: ") + error.data());
    }
  }
  ~Tokenizer() { functions->free_tokenizer(handle); }
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::vector<TokenId> tokens_of(const std::string& text) const {
    {
      const std::lock_guard lock(mutex);
      if (const auto found = known_texts.find(text); found != known_texts.end()) return found->second;
    }
    std::vector<TokenId> tokens = tokenize(text);
    const std::lock_guard lock(mutex);
    if (known_texts.size() >= kMaxKnownTexts) known_texts.clear();
    known_texts.emplace(text, tokens);
    return tokens;
  }

  /// Must not throw into the library: a text that cannot be written is no tokens.
  static std::size_t tokenize_for_library(const void* self, const std::uint8_t* bytes, std::size_t num_bytes,
                                          std::uint32_t* out, std::size_t capacity) {
    try {
      const std::string text(reinterpret_cast<const char*>(bytes), num_bytes);
      const std::vector<TokenId> tokens = static_cast<const Tokenizer*>(self)->tokens_of(text);
      for (std::size_t i = 0; i < std::min(tokens.size(), capacity); ++i)
        out[i] = static_cast<std::uint32_t>(tokens[i]);
      return tokens.size();
    } catch (...) {
      return 0;
    }
  }
};

/// A matcher at the beginning, which is cloned.
class Compiler::Grammar final : public TokenGrammar {
 public:
  Grammar(std::shared_ptr<const Tokenizer> tokenizer, MatcherHandle prototype)
      : tokenizer_(std::move(tokenizer)), prototype_(std::move(prototype)) {}

  std::unique_ptr<TokenMatcher> make_matcher() const override {
    const std::lock_guard lock(mutex_);
    MatcherHandle matcher(tokenizer_->functions->clone_matcher(prototype_.get()), FreeMatcher{tokenizer_->functions});
    return std::make_unique<LlgMatcher>(tokenizer_, std::move(matcher), tokenizer_->vocab_size);
  }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  mutable std::mutex mutex_;
  MatcherHandle prototype_;  ///< guarded by mutex_
};

namespace {

/// Computes the first bitmask, so that a grammar that no answer fits, or that is too wide to begin, is refused before
/// anything runs; and as it may take seconds, the clones take it over.
void begin(const llg_abi::Functions& functions, llg_abi::Matcher* matcher, const std::string& name) {
  const std::size_t num_bytes = functions.matcher_get_mask_byte_size(matcher);
  std::vector<std::uint32_t> bitmask(num_bytes / sizeof(std::uint32_t));
  if (functions.matcher_compute_mask_into(matcher, bitmask.data(), num_bytes) == 0) return;
  throw Error(ErrorCode::kInvalidArgument, "the " + name + " is refused: " + why_not_on(functions, matcher));
}

}  // namespace

Compiler::Compiler(const Library& library, const Vocabulary& vocabulary, CacheLimits limits)
    : tokenizer_(std::make_shared<const Tokenizer>(library, vocabulary)), limits_(limits) {}

Compiler::~Compiler() = default;

std::int64_t Compiler::vocab_size() const {
  return tokenizer_->vocab_size;
}

std::size_t Compiler::num_cached() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::shared_ptr<const TokenGrammar> Compiler::compile(Kind kind, const std::string& source) {
  const auto type = static_cast<std::size_t>(kind);
  const std::string name = kNames[type];
  if (source.size() > kMaxSourceBytes) {
    throw Error(ErrorCode::kInvalidArgument, "the " + name + " has " + std::to_string(source.size()) +
                                                 " bytes; allowed: up to " + std::to_string(kMaxSourceBytes));
  }
  if (source.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument, "the " + name + " has a NUL character");
  }
  const std::string key = std::string(kTypes[type]) + '\0' + source;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = index_.find(key); found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return entries_.front().second;
    }
  }
  const llg_abi::Functions& functions = *tokenizer_->functions;
  llg_abi::ConstraintInit init{};
  functions.constraint_init_set_defaults(&init, tokenizer_->handle);
  init.tokenizer = tokenizer_->handle;
  init.log_stderr_level = 0;
  init.log_buffer_level = 0;
  init.limits.verbose_errors = false;
  init.limits.max_items_in_row = kMaxParserItems;
  MatcherHandle matcher(functions.new_matcher(&init, kTypes[type], source.c_str()), FreeMatcher{&functions});
  if (functions.matcher_get_error(matcher.get()) != nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "the " + name + " is refused: " + error_text(functions, matcher.get()));
  }
  begin(functions, matcher.get(), name);
  auto grammar = std::make_shared<const Grammar>(tokenizer_, std::move(matcher));
  const std::lock_guard lock(mutex_);
  if (const auto found = index_.find(key); found != index_.end()) return found->second->second;
  entries_.emplace_front(key, grammar);
  index_.emplace(key, entries_.begin());
  text_bytes_ += key.size();
  while (entries_.size() > 1 && (entries_.size() > limits_.max_grammars || text_bytes_ > limits_.max_text_bytes)) {
    text_bytes_ -= entries_.back().first.size();
    index_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return grammar;
}

}  // namespace genai::grammar
