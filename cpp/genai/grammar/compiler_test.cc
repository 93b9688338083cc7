#include "genai/grammar/compiler.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace genai::grammar {
namespace {

/// What fakes do and what was done with them.
struct Script {
  std::size_t num_forced = 0;
  std::size_t fails_after = 1000;  ///< tokens
  std::string error = "synthetic";
  std::size_t num_compiled = 0;
  std::function<void()> when_freed = {};
  LlgVocabulary vocabulary = {};
};

/// Allows each token, and the made-up end token too.
class FakeMatcher final : public LlgMatcher {
 public:
  FakeMatcher(Script& script, std::size_t num_tokens, bool counts)
      : script_(script), left_(num_tokens), counts_(counts) {}
  ~FakeMatcher() override {
    if (counts_ && script_.when_freed) script_.when_freed();
  }

  std::optional<std::string> error() override { return failed_ ? std::optional(script_.error) : std::nullopt; }
  bool compute_mask(std::span<std::uint32_t> words) override {
    check(words.size() == bitmask_words(std::ssize(script_.vocabulary.tokens)), "wrong size");
    std::ranges::fill(words, ~0U);
    return !failed_;
  }
  bool consume(std::span<const TokenId> tokens) override {
    failed_ = tokens.size() > left_;
    left_ -= std::min(tokens.size(), left_);
    return !failed_;
  }
  bool rollback(std::size_t count) override {
    left_ += count;
    return true;
  }
  std::vector<TokenId> forced_tokens() override { return std::vector<TokenId>(script_.num_forced, 1); }
  bool is_accepting() override { return true; }
  bool is_stopped() override { return false; }
  std::unique_ptr<LlgMatcher> clone() const override { return std::make_unique<FakeMatcher>(script_, left_, false); }

 private:
  Script& script_;
  std::size_t left_;
  bool counts_;  ///< it is the first of its grammar
  bool failed_ = false;
};

class FakeLlguidance final : public Llguidance, public LlgTokenizer {
 public:
  explicit FakeLlguidance(Script& script) : script_(script) {}

  std::shared_ptr<const LlgTokenizer> make_tokenizer(LlgVocabulary vocabulary) const override {
    script_.vocabulary = std::move(vocabulary);
    return std::make_shared<FakeLlguidance>(script_);
  }
  std::unique_ptr<LlgMatcher> new_matcher(Kind /*kind*/, const std::string& /*source*/,
                                          std::size_t /*max_items_in_row*/) const override {
    ++script_.num_compiled;
    return std::make_unique<FakeMatcher>(script_, script_.fails_after, true);
  }

 private:
  Script& script_;
};

Vocabulary vocabulary_of(std::size_t size, std::vector<TokenId> eos_ids = {0}) {
  auto table = std::make_shared<TokenTable>();
  table->bytes.assign(size, "x");
  table->kinds.assign(size, TokenTable::Kind::kText);
  table->bytes[0] = "</s>";
  table->kinds[0] = TokenTable::Kind::kSpecial;
  return {.table = table, .tokenize = {}, .eos_ids = std::move(eos_ids)};
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("Special tokens are marked, and end tokens that the table does not have are left out") {
  Script script;
  const Compiler compiler(FakeLlguidance(script), vocabulary_of(40, {0, 3, 40, -1}));

  CHECK(script.vocabulary.tokens.size() == 40);
  CHECK(script.vocabulary.tokens[0] == "\xff</s>");
  CHECK(script.vocabulary.tokens[1] == "x");
  CHECK(script.vocabulary.eos_ids == std::vector<TokenId>{0, 3});
  CHECK_FALSE(script.vocabulary.tokenize);
}

TEST_CASE("A bitmask covers the tokens of the table and no made-up end token") {
  for (const std::size_t size : {31U, 32U, 33U, 64U}) {
    Script script;
    Compiler compiler(FakeLlguidance(script), vocabulary_of(size, {}));
    REQUIRE(script.vocabulary.tokens.size() == size + 1);

    std::vector<std::uint32_t> bitmask(bitmask_words(compiler.vocab_size()));
    compiler.compile(Kind::kLark, "start: x")->make_matcher()->fill_bitmask(bitmask);

    const auto count = std::accumulate(bitmask.begin(), bitmask.end(), 0,
                                       [](int sum, std::uint32_t bits) { return sum + std::popcount(bits); });
    CHECK(count == static_cast<int>(size));
  }
}

TEST_CASE("Grammars are kept by kind and source, the last ones") {
  Script script;
  Compiler compiler(FakeLlguidance(script), vocabulary_of(8), {.max_grammars = 2, .max_text_bytes = 1000});

  const auto first = compiler.compile(Kind::kRegex, "a");
  CHECK(compiler.compile(Kind::kRegex, "a") == first);
  CHECK(compiler.compile(Kind::kLark, "a") != first);
  compiler.compile(Kind::kRegex, "a");
  compiler.compile(Kind::kRegex, "b");  // the Lark grammar goes

  CHECK(compiler.num_cached() == 2);
  CHECK(compiler.compile(Kind::kRegex, "a") == first);
  CHECK(script.num_compiled == 3);
  compiler.compile(Kind::kLark, "a");
  CHECK(script.num_compiled == 4);
}

TEST_CASE("Sources together have a bound, but one is kept") {
  Script script;
  Compiler compiler(FakeLlguidance(script), vocabulary_of(8), {.max_grammars = 9, .max_text_bytes = 100});

  compiler.compile(Kind::kRegex, "a");
  compiler.compile(Kind::kRegex, std::string(500, 'b'));
  CHECK(compiler.num_cached() == 1);
  compiler.compile(Kind::kRegex, std::string(30, 'c'));
  compiler.compile(Kind::kRegex, std::string(30, 'd'));
  CHECK(compiler.num_cached() == 2);
}

TEST_CASE("A forgotten grammar is freed when others may use the compiler") {
  Script script;
  Compiler compiler(FakeLlguidance(script), vocabulary_of(8), {.max_grammars = 1, .max_text_bytes = 1000});
  std::vector<std::size_t> seen;
  compiler.compile(Kind::kRegex, "a");
  script.when_freed = [&] { std::jthread([&] { seen.push_back(compiler.num_cached()); }).join(); };

  compiler.compile(Kind::kRegex, "b");

  CHECK(seen == std::vector<std::size_t>{1});
  script.when_freed = {};
}

TEST_CASE("Errors say what went wrong and how to go on") {
  Script script{.error = "too many\n<non-verbose/>\nof the parser"};
  Compiler compiler(FakeLlguidance(script), vocabulary_of(8));

  const auto going = message_of([&] {
    const auto matcher = compiler.compile(Kind::kRegex, "a")->make_matcher();
    matcher->accept(std::vector<TokenId>(1001, 1));
  });
  CHECK(going.starts_with("the grammar cannot go on: too many. If it is too large, give it fewer ways"));
  CHECK(message_of([&] { compiler.compile(Kind::kLark, std::string("a\0b", 3)); }) ==
        "the Lark grammar has a NUL character");
  CHECK(message_of([&] { compiler.compile(Kind::kJsonSchema, std::string((4U << 20U) + 1, ' ')); }) ==
        "the JSON schema has 4194305 bytes; allowed: up to 4194304");
}

TEST_CASE("Matchers of one grammar go on by themselves, and take back") {
  Script script{.fails_after = 2};
  Compiler compiler(FakeLlguidance(script), vocabulary_of(8));
  const auto grammar = compiler.compile(Kind::kRegex, "a");
  const std::vector<TokenId> two{1, 2};

  const auto one = grammar->make_matcher();
  one->accept(two);
  const auto copy = one->clone();
  copy->rollback(2);
  copy->accept(two);
  grammar->make_matcher()->accept(two);

  CHECK(message_of([&] { one->accept(two); }).starts_with("the grammar cannot go on: synthetic"));
}

TEST_CASE("What is forced at once has a bound") {
  Script script{.num_forced = 700};
  Compiler compiler(FakeLlguidance(script), vocabulary_of(8));

  CHECK(compiler.compile(Kind::kRegex, "a")->make_matcher()->forced_tokens().size() == kMaxForcedTokens);
}

TEST_CASE("Texts are tokenized once, and those that cannot be are no tokens") {
  Script script;
  Vocabulary vocabulary = vocabulary_of(8);
  std::vector<std::string> asked;
  vocabulary.tokenize = [&](const std::string& text) -> std::vector<TokenId> {
    asked.push_back(text);
    if (text == "bad") throw std::runtime_error("no");
    return {1, 2};
  };
  const Compiler compiler(FakeLlguidance(script), vocabulary);

  CHECK(script.vocabulary.tokenize("a") == std::vector<TokenId>{1, 2});
  CHECK(script.vocabulary.tokenize("a") == std::vector<TokenId>{1, 2});
  CHECK(script.vocabulary.tokenize("bad").empty());
  CHECK(asked == std::vector<std::string>{"a", "bad"});
}

}  // namespace genai::grammar
