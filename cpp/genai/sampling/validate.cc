#include "genai/sampling/validate.h"

#include "genai/base/error.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace genai::sampling {
namespace {

constexpr int kMaxChoices = 128;
constexpr int kMaxTopLogprobs = 20;
constexpr int kMaxBeams = 128;

template <typename Value>
[[noreturn]] void refuse(std::string_view name, const Value& value, std::string_view allowed) {
  std::ostringstream message;
  message << name << " is " << value << "; allowed: " << allowed;
  throw Error(ErrorCode::kInvalidArgument, message.str());
}

void check_reals(const SamplingParams& p) {
  // The conditions are false for NaN.
  const float max = std::numeric_limits<float>::max();
  const auto in = [](float value, float low, float high) { return value >= low && value <= high; };
  const auto above = [](float value, float low, float high) { return value > low && value <= high; };
  if (!in(p.temperature, 0, max)) refuse("temperature", p.temperature, "a finite number >= 0");
  if (!above(p.top_p, 0, 1)) refuse("top_p", p.top_p, "> 0 and <= 1");
  if (!in(p.min_p, 0, 1)) refuse("min_p", p.min_p, "0 to 1");
  if (!above(p.typical_p, 0, 1)) refuse("typical_p", p.typical_p, "> 0 and <= 1");
  if (!in(p.top_a, 0, 1)) refuse("top_a", p.top_a, "0 to 1");
  if (!above(p.mirostat_tau, 0, max)) refuse("mirostat_tau", p.mirostat_tau, "a finite number > 0");
  if (!above(p.mirostat_eta, 0, 1)) refuse("mirostat_eta", p.mirostat_eta, "> 0 and <= 1");
  if (!in(p.xtc_probability, 0, 1)) refuse("xtc_probability", p.xtc_probability, "0 to 1");
  if (!above(p.xtc_threshold, 0, 0.5F)) refuse("xtc_threshold", p.xtc_threshold, "> 0 and <= 0.5");
  if (!above(p.repetition_penalty, 0, max)) {
    refuse("repetition_penalty", p.repetition_penalty, "a finite number > 0");
  }
  if (!in(p.frequency_penalty, -2, 2)) refuse("frequency_penalty", p.frequency_penalty, "-2 to 2");
  if (!in(p.presence_penalty, -2, 2)) refuse("presence_penalty", p.presence_penalty, "-2 to 2");
  if (!in(p.dry_multiplier, 0, max)) refuse("dry_multiplier", p.dry_multiplier, "a finite number >= 0");
  if (!in(p.dry_base, 1, max)) refuse("dry_base", p.dry_base, "a finite number >= 1");
}

void check_integers(const SamplingParams& p) {
  if (p.max_new_tokens < 0) refuse("max_new_tokens", p.max_new_tokens, ">= 0 (0 fills the context)");
  if (p.min_new_tokens < 0) refuse("min_new_tokens", p.min_new_tokens, ">= 0");
  if (p.top_k < 0) refuse("top_k", p.top_k, ">= 0 (0 is off)");
  if (p.mirostat != 0 && p.mirostat != 2) refuse("mirostat", p.mirostat, "0 (off) or 2 (version 2)");
  if (p.dry_allowed_length < 1) refuse("dry_allowed_length", p.dry_allowed_length, ">= 1");
  if (p.no_repeat_ngram_size < 0) refuse("no_repeat_ngram_size", p.no_repeat_ngram_size, ">= 0 (0 is off)");
  if (p.n < 1 || p.n > kMaxChoices) refuse("n", p.n, "1 to " + std::to_string(kMaxChoices));
  if (p.num_beams < 1 || p.num_beams > kMaxBeams) {
    refuse("num_beams", p.num_beams, "1 (no beam search) to " + std::to_string(kMaxBeams));
  }
  if (p.top_logprobs < 0 || p.top_logprobs > kMaxTopLogprobs) {
    refuse("top_logprobs", p.top_logprobs, "0 to " + std::to_string(kMaxTopLogprobs));
  }
}

void check_id(std::string_view name, TokenId token, std::int64_t vocab_size) {
  if (token < 0 || token >= vocab_size) {
    refuse(name, token, "token ids of this model, 0 to " + std::to_string(vocab_size - 1));
  }
}

void check_ids(const std::string& name, std::span<const TokenId> tokens, std::int64_t vocab_size) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    check_id(name + "[" + std::to_string(i) + "]", tokens[i], vocab_size);
  }
}

void check_all_ids(const SamplingParams& p, std::int64_t vocab_size) {
  check_ids("stop_token_ids", p.stop_token_ids, vocab_size);
  check_ids("suppress_tokens", p.suppress_tokens, vocab_size);
  check_ids("begin_suppress_tokens", p.begin_suppress_tokens, vocab_size);
  check_ids("dry_sequence_breakers", p.dry_sequence_breakers, vocab_size);
  for (std::size_t i = 0; i < p.bad_words.size(); ++i) {
    const std::string name = "bad_words[" + std::to_string(i) + "]";
    if (p.bad_words[i].empty()) refuse(name, "empty", "a list of token ids that is not empty");
    check_ids(name, p.bad_words[i], vocab_size);
  }
  for (const auto& [token, bias] : p.logit_bias) {
    check_id("a key of logit_bias", token, vocab_size);
    if (std::isnan(bias) || bias == std::numeric_limits<float>::infinity()) {
      refuse("logit_bias[" + std::to_string(token) + "]", bias, "a finite number or -inf");
    }
  }
  for (const auto& [position, token] : p.forced_tokens) {
    if (position < 0) refuse("a key of forced_tokens", position, "output positions, >= 0");
    check_id("forced_tokens[" + std::to_string(position) + "]", token, vocab_size);
  }
}

/// Beam search draws nothing at random.
void check_beams(const SamplingParams& p) {
  if (!std::isfinite(p.length_penalty)) refuse("length_penalty", p.length_penalty, "a finite number");
  if (p.num_beams == 1) return;
  if (p.temperature != 0.0F) {
    refuse("temperature", p.temperature, "0 with num_beams above 1, because beam search does not sample");
  }
  if (p.mirostat != 0) refuse("mirostat", p.mirostat, "0 with num_beams above 1, because beam search does not sample");
  if (p.n > p.num_beams) {
    refuse("n", p.n, "at most num_beams, which is " + std::to_string(p.num_beams) + " (the best n beams are returned)");
  }
}

/// Only what holds at every position counts: suppressed ids, biases of -inf and bad words of one id.
void check_some_token_is_left(const SamplingParams& p, std::int64_t vocab_size) {
  const auto size = static_cast<std::size_t>(vocab_size);
  if (p.suppress_tokens.size() + p.logit_bias.size() + p.bad_words.size() < size) return;
  std::vector<bool> is_forbidden(size);
  const auto forbid = [&](TokenId token) { is_forbidden[static_cast<std::size_t>(token)] = true; };
  for (const TokenId token : p.suppress_tokens) forbid(token);
  for (const auto& [token, bias] : p.logit_bias) {
    if (std::isinf(bias)) forbid(token);
  }
  for (const std::vector<TokenId>& word : p.bad_words) {
    if (word.size() == 1) forbid(word.front());
  }
  for (const bool forbidden : is_forbidden) {
    if (!forbidden) return;
  }
  throw Error(ErrorCode::kInvalidArgument, "suppress_tokens, logit_bias and bad_words together forbid all " +
                                               std::to_string(vocab_size) +
                                               " tokens of the vocabulary; allow at least one");
}

}  // namespace

void validate(const SamplingParams& params, std::int64_t vocab_size) {
  check(vocab_size > 0, "a vocabulary has no tokens");
  check_reals(params);
  check_integers(params);
  check_beams(params);
  check_all_ids(params, vocab_size);
  check_some_token_is_left(params, vocab_size);
  for (std::size_t i = 0; i < params.stop.size(); ++i) {
    if (params.stop[i].empty()) {
      refuse("stop[" + std::to_string(i) + "]", "\"\"", "a string that is not empty");
    }
  }
}

}  // namespace genai::sampling
