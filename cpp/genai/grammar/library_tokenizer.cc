#include "genai/base/error.h"
#include "genai/grammar/library.h"

#include "llguidance/abi.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace genai::grammar {
namespace {

struct FreeMatcher {
  const llg_abi::Functions* functions;
  void operator()(llg_abi::Matcher* matcher) const { functions->free_matcher(matcher); }
};
using MatcherHandle = std::unique_ptr<llg_abi::Matcher, FreeMatcher>;

class LibraryMatcher final : public LlgMatcher {
 public:
  explicit LibraryMatcher(MatcherHandle matcher) : matcher_(std::move(matcher)) {}

  std::optional<std::string> error() override {
    const char* const text = functions().matcher_get_error(handle());
    if (text == nullptr) return std::nullopt;
    return text;
  }

  bool compute_mask(std::span<std::uint32_t> words) override {
    return functions().matcher_compute_mask_into(handle(), words.data(), words.size_bytes()) == 0;
  }

  bool consume(std::span<const TokenId> tokens) override {
    const std::vector<std::uint32_t> ids(tokens.begin(), tokens.end());
    return functions().matcher_consume_tokens(handle(), ids.data(), ids.size()) == 0;
  }

  bool rollback(std::size_t count) override { return functions().matcher_rollback(handle(), count) == 0; }

  std::vector<TokenId> forced_tokens() override {
    std::array<std::uint32_t, kMaxForcedTokens> tokens{};
    const std::int32_t count = functions().matcher_compute_ff_tokens(handle(), tokens.data(), tokens.size());
    if (count <= 0) return {};
    return {tokens.begin(), tokens.begin() + std::min<std::ptrdiff_t>(count, kMaxForcedTokens)};
  }

  bool is_accepting() override { return functions().matcher_is_accepting(handle()); }
  bool is_stopped() override { return functions().matcher_is_stopped(handle()); }

  std::unique_ptr<LlgMatcher> clone() const override {
    const std::lock_guard lock(clone_mutex_);
    return std::make_unique<LibraryMatcher>(MatcherHandle(functions().clone_matcher(handle()), matcher_.get_deleter()));
  }

 private:
  const llg_abi::Functions& functions() const { return *matcher_.get_deleter().functions; }
  llg_abi::Matcher* handle() const { return matcher_.get(); }

  MatcherHandle matcher_;
  mutable std::mutex clone_mutex_;
};

/// Lengths and joined bytes, as the library wants them.
struct JoinedTokens {
  std::vector<std::uint32_t> lengths;
  std::string bytes;

  explicit JoinedTokens(const std::vector<std::string>& tokens) {
    lengths.reserve(tokens.size());
    for (const std::string& token : tokens) {
      lengths.push_back(static_cast<std::uint32_t>(token.size()));
      bytes += token;
    }
  }
};

class LibraryTokenizer final : public LlgTokenizer {
 public:
  LibraryTokenizer(const llg_abi::Functions& functions, LlgVocabulary vocabulary)
      : functions_(functions), tokenize_(std::move(vocabulary.tokenize)) {
    const std::vector<std::uint32_t> eos(vocabulary.eos_ids.begin(), vocabulary.eos_ids.end());
    const JoinedTokens tokens(vocabulary.tokens);
    llg_abi::TokenizerInit init{};
    init.struct_size = sizeof(init);
    init.vocab_size = static_cast<std::uint32_t>(tokens.lengths.size());
    init.eos = eos.front();
    init.eos_extra = eos.data() + 1;
    init.eos_extra_count = static_cast<std::uint32_t>(eos.size() - 1);
    init.token_lens = tokens.lengths.data();
    init.token_bytes = reinterpret_cast<const std::uint8_t*>(tokens.bytes.data());
    init.use_approximate_greedy_tokenize_fn = !tokenize_;
    if (tokenize_) {
      init.tokenize_fn = &tokenize_for_library;
      init.tokenize_user_data = this;
      init.tokenize_assumes_string = true;
    }
    std::array<char, 512> error{};
    handle_ = functions_.new_tokenizer_v2(&init, error.data(), error.size());
    if (handle_ == nullptr) {
      throw Error(ErrorCode::kBadPackage, std::string("the vocabulary cannot be used for grammars: ") + error.data());
    }
  }
  ~LibraryTokenizer() override { functions_.free_tokenizer(handle_); }
  LibraryTokenizer(const LibraryTokenizer&) = delete;
  LibraryTokenizer& operator=(const LibraryTokenizer&) = delete;

  std::unique_ptr<LlgMatcher> new_matcher(Kind kind, const std::string& source,
                                          std::size_t max_items_in_row) const override {
    llg_abi::ConstraintInit init{};
    functions_.constraint_init_set_defaults(&init, handle_);
    init.tokenizer = handle_;
    init.log_stderr_level = 0;
    init.log_buffer_level = 0;
    init.limits.verbose_errors = false;
    init.limits.max_items_in_row = max_items_in_row;
    return std::make_unique<LibraryMatcher>(
        MatcherHandle(functions_.new_matcher(&init, name_of(kind), source.c_str()), FreeMatcher{&functions_}));
  }

 private:
  static std::size_t tokenize_for_library(const void* self, const std::uint8_t* bytes, std::size_t num_bytes,
                                          std::uint32_t* out, std::size_t capacity) {
    const std::string text(reinterpret_cast<const char*>(bytes), num_bytes);
    const std::vector<TokenId> tokens = static_cast<const LibraryTokenizer*>(self)->tokenize_(text);
    for (std::size_t i = 0; i < std::min(tokens.size(), capacity); ++i) out[i] = static_cast<std::uint32_t>(tokens[i]);
    return tokens.size();
  }

  const llg_abi::Functions& functions_;  ///< the library's
  std::function<std::vector<TokenId>(const std::string&)> tokenize_;
  llg_abi::Tokenizer* handle_ = nullptr;
};

}  // namespace

std::shared_ptr<const LlgTokenizer> Library::make_tokenizer(LlgVocabulary vocabulary) const {
  return std::make_shared<const LibraryTokenizer>(*functions_, std::move(vocabulary));
}

}  // namespace genai::grammar
