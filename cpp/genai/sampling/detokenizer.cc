#include "genai/sampling/detokenizer.h"

#include "genai/base/error.h"
#include "genai/base/utf8.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

namespace genai::sampling {
namespace {

/// A run of byte tokens as text: all of it, or one U+FFFD a byte.
std::string decode_byte_run(std::string_view run) {
  if (is_valid_utf8(run)) return std::string(run);
  std::string text;
  for (std::size_t i = 0; i < run.size(); ++i) text += kReplacementCharacter;
  return text;
}

}  // namespace

Detokenizer::Detokenizer(std::shared_ptr<const TokenTable> table, bool skip_special_tokens,
                         std::vector<TokenId> visible)
    : table_(std::move(table)),
      skip_special_tokens_(skip_special_tokens),
      visible_(std::move(visible)),
      may_strip_(false) {
  std::ranges::sort(visible_);
  check(table_ != nullptr, "a detokenizer needs a token table");
  check(table_->bytes.size() == table_->kinds.size(), "token table: bytes and kinds differ in length");
  may_strip_ = table_->strip_first_space;
}

std::string Detokenizer::append(TokenId token) {
  // Unknown and skipped ids are as if they were not there: they do not even end a run of byte tokens.
  if (token < 0 || static_cast<std::size_t>(token) >= table_->size()) return {};
  const auto index = static_cast<std::size_t>(token);
  const TokenTable::Kind kind = table_->kinds[index];
  const std::string& bytes = table_->bytes[index];
  // A special token without text is an id that does not exist.
  const bool is_special = kind == TokenTable::Kind::kSpecial;
  if (is_special && bytes.empty()) return {};
  if (is_special && skip_special_tokens_ && !std::ranges::binary_search(visible_, token)) return {};

  const bool is_first = !has_tokens_;
  has_tokens_ = true;
  if (table_->decoding == TokenTable::Decoding::kByteFallback) {
    if (kind == TokenTable::Kind::kByte) {
      byte_run_ += bytes;
      return {};
    }
    pending_ += decode_byte_run(byte_run_);
    byte_run_.clear();
  }
  const auto first = is_first ? table_->first.find(token) : table_->first.end();
  if (first != table_->first.end()) {
    may_strip_ = false;
    pending_ += first->second;
  } else {
    pending_ += bytes;
  }
  return take_certain(false);
}

std::string Detokenizer::flush() {
  pending_ += decode_byte_run(byte_run_);
  byte_run_.clear();
  return take_certain(true);
}

std::string Detokenizer::take_certain(bool at_end) {
  const std::size_t held = at_end ? 0 : incomplete_utf8_tail(pending_);
  const std::size_t certain = pending_.size() - held;
  std::string text = decode_utf8_lossy(std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  if (may_strip_ && !text.empty()) {
    may_strip_ = false;
    if (text.front() == ' ') text.erase(0, 1);
  }
  return text;
}

}  // namespace genai::sampling
