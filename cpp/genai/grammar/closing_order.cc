#include "genai/grammar/closing_order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <numeric>
#include <string_view>
#include <tuple>

namespace genai::grammar {
namespace {

constexpr std::size_t kFewTokens = 2048;  ///< a bitmask with up to so many is looked at token by token

constexpr std::ptrdiff_t kLongToken = 12;  ///< bytes; of longer ones the more frequent one is better

constexpr std::size_t kMaxAlike = 2;  ///< others of one role
constexpr std::size_t kMaxDigits = 9;
constexpr std::ptrdiff_t kFewDigits = 3;  ///< at places that look the same, until something else is tried
constexpr std::size_t kMaxSigns = 4;
constexpr std::size_t kMaxMarks = 8;

/// What a token does to a text.
enum class Role : std::uint8_t {
  kEndMark,       ///< a special token that looks like an end
  kMark,          ///< another one
  kBrackets,      ///< closing ones
  kEmptyText,     ///< "" and closing brackets
  kQuoteAndEnd,   ///< " and closing brackets
  kQuoteAndMore,  ///< " and what leads to the next text or value
  kQuote,
  kEmptyValue,  ///< {} or [], and closing brackets
  kSeparator,
  kJoiner,  ///< what stands between the parts of addresses and times
  kDigit,
  kWord,  ///< true, false, null
  kOpening,
  kPlain,  ///< letters and digits
  kSigns,
  kForeign,  ///< not ASCII, or part of a character
  kWithSpace,
  kSpace,
  kNothing,
};
constexpr std::size_t kNumRoles = static_cast<std::size_t>(Role::kNothing) + 1;

struct Ranking {
  std::array<Role, kNumRoles> roles;  ///< best first
  Role first_varied;
  Role first_useless;
};

/// White space comes last of all: grammars allow it nearly everywhere, and it ends nothing.
constexpr Ranking kInStructure = {
    .roles = {Role::kEndMark, Role::kBrackets, Role::kEmptyText, Role::kQuoteAndEnd, Role::kQuoteAndMore, Role::kQuote,
              Role::kEmptyValue, Role::kSeparator, Role::kJoiner, Role::kDigit, Role::kWord, Role::kOpening,
              Role::kMark, Role::kPlain, Role::kSigns, Role::kForeign, Role::kWithSpace, Role::kSpace, Role::kNothing},
    .first_varied = Role::kJoiner,
    .first_useless = Role::kWithSpace};

/// What stands between words may end them, and so may a sign, each once.
constexpr Ranking kInWords = {
    .roles = {Role::kEndMark, Role::kQuoteAndEnd, Role::kQuoteAndMore, Role::kQuote, Role::kJoiner, Role::kBrackets,
              Role::kSigns, Role::kSeparator, Role::kPlain, Role::kSpace, Role::kDigit, Role::kWord, Role::kWithSpace,
              Role::kMark, Role::kForeign, Role::kOpening, Role::kEmptyText, Role::kEmptyValue, Role::kNothing},
    .first_varied = Role::kJoiner,
    .first_useless = Role::kNothing};

/// A bracket is a letter like others here; long tokens fill a text that must have a length.
constexpr Ranking kInText = {
    .roles = {Role::kEndMark, Role::kQuoteAndEnd, Role::kQuoteAndMore, Role::kQuote, Role::kPlain, Role::kBrackets,
              Role::kSigns, Role::kJoiner, Role::kDigit, Role::kWord, Role::kWithSpace, Role::kMark, Role::kForeign,
              Role::kSeparator, Role::kOpening, Role::kEmptyText, Role::kEmptyValue, Role::kSpace, Role::kNothing},
    .first_varied = Role::kPlain,
    .first_useless = Role::kNothing};

bool is_only(std::string_view text, std::string_view letters) {
  return text.find_first_not_of(letters) == std::string_view::npos;
}

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// "</think>", "<|end|>", "[/INST]".
bool looks_like_end(std::string_view text) {
  return has(text, "/") || has(text, "end") || has(text, "END");
}

bool is_end_tag(std::string_view text) {
  if (text.size() < 4 || !has(text, "/")) return false;
  return (text.front() == '<' && text.back() == '>') || (text.front() == '[' && text.back() == ']');
}

Role role_of(std::string_view text, TokenTable::Kind kind) {
  constexpr std::string_view kClosing = "}])";
  if (text.empty()) return Role::kNothing;
  if (kind == TokenTable::Kind::kSpecial) return looks_like_end(text) ? Role::kEndMark : Role::kMark;
  if (is_only(text, kClosing)) return Role::kBrackets;
  if (text.front() == '"') {
    const std::string_view rest = text.substr(1);
    if (rest.empty()) return Role::kQuote;
    if (is_only(rest, kClosing)) return Role::kQuoteAndEnd;
    if (rest.front() == '"' && is_only(rest.substr(1), kClosing)) return Role::kEmptyText;
    if (rest == ",\"" || rest == "," || rest == ":") return Role::kQuoteAndMore;
  }
  if ((text.starts_with("{}") || text.starts_with("[]")) && is_only(text.substr(2), kClosing)) return Role::kEmptyValue;
  if (text == "," || text == ",\"" || text == ":") return Role::kSeparator;
  if (text == "@" || text == "." || text == "/") return Role::kJoiner;
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '9') return Role::kDigit;
  if (text == "true" || text == "false" || text == "null") return Role::kWord;
  if (text == "{" || text == "[" || text == "{\"") return Role::kOpening;
  if (is_only(text, " \t\r\n")) return Role::kSpace;
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) return Role::kForeign;
  if (std::ranges::all_of(text, is_letter_or_digit)) return Role::kPlain;
  return text.find_first_of(" \t\r\n") == std::string_view::npos ? Role::kSigns : Role::kWithSpace;
}

bool is_set(std::span<const std::uint32_t> bitmask, TokenId token) {
  const auto id = static_cast<std::size_t>(token);
  return (bitmask[id / 32] >> (id % 32) & 1U) != 0;
}

/// Calls `body` with each token of the bitmask.
template <typename Body>
void for_each_token(std::span<const std::uint32_t> bitmask, const Body& body) {
  for (std::size_t word = 0; word < bitmask.size(); ++word) {
    for (std::uint32_t bits = bitmask[word]; bits != 0; bits &= bits - 1) {
      body(static_cast<TokenId>(word * 32) + std::countr_zero(bits));
    }
  }
}

bool has_few(std::span<const std::uint32_t> bitmask) {
  std::size_t count = 0;
  for (const std::uint32_t bits : bitmask) {
    if (bits == 0) continue;
    count += static_cast<std::size_t>(std::popcount(bits));
    if (count > kFewTokens) return false;
  }
  return true;
}

}  // namespace

ClosingOrder::ClosingOrder(const TokenTable& table, std::int64_t num_usable)
    : num_usable_(num_usable), roles_(table.size()) {
  std::vector<Role> roles(table.size());
  for (std::size_t i = 0; i < table.size(); ++i) {
    roles[i] = role_of(table.bytes[i], table.kinds[i]);
    roles_[i] = static_cast<std::uint8_t>(roles[i]);
    const auto token = static_cast<TokenId>(i);
    if (table.bytes[i] == "z") letter_ = token;
    if (table.bytes[i] == "(") sign_ = token;
    if (roles[i] == Role::kEndMark || roles[i] == Role::kMark || is_end_tag(table.bytes[i])) marks_.push_back(token);
  }
  const auto text = [&](TokenId token) { return std::string_view(table.bytes[static_cast<std::size_t>(token)]); };
  std::ranges::reverse(marks_);  // tokens that were added to a vocabulary come last
  std::ranges::stable_partition(marks_, [&](TokenId token) { return looks_like_end(text(token)); });

  const auto make = [&](const Ranking& ranking) {
    std::array<std::uint32_t, kNumRoles> ranks{};
    for (std::uint32_t i = 0; i < kNumRoles; ++i) ranks[static_cast<std::size_t>(ranking.roles[i])] = i;
    const auto rank = [&](TokenId token) {
      return ranks[static_cast<std::size_t>(roles[static_cast<std::size_t>(token)])];
    };
    const auto key = [&](TokenId token) {
      const bool is_zero = text(token) == "0";  // many numbers must be above
      return std::tuple(rank(token), is_zero, -std::min(std::ssize(text(token)), kLongToken), token);
    };
    Order order{.tokens = std::vector<TokenId>(table.size()), .place = std::vector<std::uint32_t>(table.size())};
    std::iota(order.tokens.begin(), order.tokens.end(), 0);
    std::ranges::sort(order.tokens, {}, key);
    for (std::uint32_t i = 0; i < order.tokens.size(); ++i) order.place[static_cast<std::size_t>(order.tokens[i])] = i;
    const auto first_of = [&](Role role) {
      const auto found = std::ranges::lower_bound(order.tokens, ranks[static_cast<std::size_t>(role)], {}, rank);
      return static_cast<std::uint32_t>(found - order.tokens.begin());
    };
    order.first_varied = first_of(ranking.first_varied);
    order.first_useless = first_of(ranking.first_useless);
    return order;
  };
  in_structure_ = make(kInStructure);
  in_words_ = make(kInWords);
  in_text_ = make(kInText);
  const auto is_one_of = [&](TokenId token, std::string_view letters) {
    return text(token).size() == 1 && has(letters, text(token));
  };
  std::ranges::copy_if(in_structure_.tokens, std::back_inserter(signs_), [&](TokenId token) {
    const Role role = roles[static_cast<std::size_t>(token)];
    return role < Role::kPlain || (role == Role::kSigns && text(token).size() == 1) || is_one_of(token, " zA");
  });
}

const ClosingOrder::Order& ClosingOrder::order_for(std::span<const std::uint32_t> bitmask) const {
  if (!letter_ || !is_set(bitmask, *letter_)) return in_structure_;
  return sign_ && is_set(bitmask, *sign_) ? in_text_ : in_words_;
}

std::optional<TokenId> ClosingOrder::best(std::span<const std::uint32_t> bitmask,
                                          std::span<const TokenId> tried) const {
  const Order& order = order_for(bitmask);
  const auto place = [&](TokenId token) { return order.place[static_cast<std::size_t>(token)]; };
  const auto role = [&](TokenId token) { return static_cast<Role>(roles_[static_cast<std::size_t>(token)]); };
  const auto is_avoided = [&](TokenId token) {
    return place(token) >= order.first_varied && std::ranges::find(tried, token) != tried.end();
  };
  // One word is as good as another, but where a text is filled; of digits some may be needed.
  const auto has_tried = [&](Role some, std::ptrdiff_t count) {
    return std::ranges::count_if(tried, [&](TokenId token) { return role(token) == some; }) >= count;
  };
  const bool enough_words = &order != &in_text_ && has_tried(Role::kPlain, 1);
  const bool enough_digits = &order != &in_text_ && has_tried(Role::kDigit, kFewDigits);
  const auto is_worn = [&](TokenId token) {
    return (enough_words && role(token) == Role::kPlain) || (enough_digits && role(token) == Role::kDigit);
  };
  std::array<std::optional<TokenId>, 3> found;  // the best of: new ones, more of what was enough, those that were tried
  const auto offer = [&](TokenId token) {
    if (token >= num_usable_) return;
    std::optional<TokenId>& best = found[is_avoided(token) ? 2 : is_worn(token) ? 1 : 0];
    if (!best || place(token) < place(*best)) best = token;
  };
  if (has_few(bitmask)) {
    for_each_token(bitmask, offer);
  } else {
    for (auto token = order.tokens.begin(); token != order.tokens.end() && !found[0]; ++token) {
      if (is_set(bitmask, *token)) offer(*token);
    }
  }
  const auto best = std::ranges::find_if(found, [](const std::optional<TokenId>& token) { return token.has_value(); });
  return best != found.end() ? *best : std::nullopt;
}

std::vector<TokenId> ClosingOrder::others(std::span<const std::uint32_t> bitmask, TokenId taken,
                                          std::size_t max_count) const {
  std::vector<TokenId> out;
  std::array<std::size_t, kNumRoles> counts{};
  const auto is_new = [&](TokenId token) {
    return token != taken && token < num_usable_ && out.size() < max_count &&
           std::ranges::find(out, token) == out.end();
  };
  const auto offer = [&](TokenId token) {
    if (!is_new(token)) return;
    const Role role = static_cast<Role>(roles_[static_cast<std::size_t>(token)]);
    const std::size_t limit = role == Role::kDigit ? kMaxDigits : role == Role::kSigns ? kMaxSigns : kMaxAlike;
    if (counts[static_cast<std::size_t>(role)]++ < limit) out.push_back(token);
  };
  for (const TokenId token : marks_) {
    if (out.size() < kMaxMarks && is_set(bitmask, token) && is_new(token)) out.push_back(token);
  }
  const auto taken_place = in_text_.place[static_cast<std::size_t>(taken)];
  if (&order_for(bitmask) == &in_text_ && taken_place < in_text_.first_varied) return out;  // the text itself is closed
  for (const TokenId token : signs_) {
    if (is_set(bitmask, token)) offer(token);
  }
  if (!has_few(bitmask)) return out;
  std::vector<TokenId> rest;
  for_each_token(bitmask, [&](TokenId token) {
    if (in_structure_.place[static_cast<std::size_t>(token)] < in_structure_.first_useless) rest.push_back(token);
  });
  std::ranges::sort(rest, {}, [&](TokenId token) { return in_structure_.place[static_cast<std::size_t>(token)]; });
  std::ranges::for_each(rest, offer);
  return out;
}

}  // namespace genai::grammar
