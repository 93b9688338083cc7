// Every logits processor against rows that others computed; tests/golden/make_sampling.py describes the file.

#include "genai/base/error.h"
#include "genai/sampling/sequence_sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace genai::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

struct Step {
  std::vector<float> logits;
  std::vector<float> expected;
  std::optional<TokenId> taken;
};

struct Case {
  std::string name;
  std::map<std::string, std::vector<double>> args;
  std::vector<TokenId> tokens;
  std::size_t num_prompt_tokens = 0;
  std::vector<Step> steps;
};

std::vector<double> read_numbers(std::istringstream& line) {
  std::vector<double> numbers;
  for (std::string word; line >> word;) {
    numbers.push_back(word == "x" ? -std::numeric_limits<double>::infinity() : std::stod(word));
  }
  return numbers;
}

template <typename Target>
std::vector<Target> cast_all(const std::vector<double>& numbers) {
  std::vector<Target> out;
  for (const double number : numbers) out.push_back(static_cast<Target>(number));
  return out;
}

std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), "cannot read " << path);
  std::vector<Case> cases;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    line >> word;
    if (word == "case") {
      line >> cases.emplace_back().name;
    } else if (word == "arg") {
      line >> word;
      cases.back().args[word] = read_numbers(line);
    } else if (word == "tokens") {
      line >> cases.back().num_prompt_tokens;
      cases.back().tokens = cast_all<TokenId>(read_numbers(line));
    } else if (word == "in") {
      cases.back().steps.emplace_back().logits = cast_all<float>(read_numbers(line));
    } else if (word == "out") {
      cases.back().steps.back().expected = cast_all<float>(read_numbers(line));
    } else if (word == "take") {
      cases.back().steps.back().taken = static_cast<TokenId>(read_numbers(line).at(0));
    } else {
      REQUIRE(word == "end");
    }
  }
  return cases;
}

/// Sets one field; returns false for a key that is no single number.
bool set_number(SamplingParams& params, const std::string& key, double value) {
  const auto real = static_cast<float>(value);
  const auto whole = static_cast<std::int64_t>(value);
  const std::map<std::string, float*> reals = {{"temperature", &params.temperature},
                                               {"top_p", &params.top_p},
                                               {"min_p", &params.min_p},
                                               {"typical_p", &params.typical_p},
                                               {"top_a", &params.top_a},
                                               {"mirostat_tau", &params.mirostat_tau},
                                               {"mirostat_eta", &params.mirostat_eta},
                                               {"xtc_probability", &params.xtc_probability},
                                               {"xtc_threshold", &params.xtc_threshold},
                                               {"repetition_penalty", &params.repetition_penalty},
                                               {"frequency_penalty", &params.frequency_penalty},
                                               {"presence_penalty", &params.presence_penalty},
                                               {"dry_multiplier", &params.dry_multiplier},
                                               {"dry_base", &params.dry_base}};
  const std::map<std::string, std::int64_t*> wholes = {{"top_k", &params.top_k},
                                                       {"min_new_tokens", &params.min_new_tokens},
                                                       {"dry_allowed_length", &params.dry_allowed_length},
                                                       {"no_repeat_ngram_size", &params.no_repeat_ngram_size}};
  if (const auto found = reals.find(key); found != reals.end())
    *found->second = real;
  else if (const auto place = wholes.find(key); place != wholes.end())
    *place->second = whole;
  else if (key == "mirostat")
    params.mirostat = static_cast<int>(value);
  else
    return false;
  return true;
}

SamplingParams params_of(const Case& test) {
  SamplingParams params;
  for (const auto& [key, values] : test.args) {
    const std::vector<TokenId> ids = cast_all<TokenId>(values);
    if (key == "dry_sequence_breakers")
      params.dry_sequence_breakers = ids;
    else if (key == "suppress_tokens")
      params.suppress_tokens = ids;
    else if (key == "begin_suppress_tokens")
      params.begin_suppress_tokens = ids;
    else if (key == "stop_token_ids")
      params.stop_token_ids = ids;
    else if (key.starts_with("bad_words_"))
      params.bad_words.push_back(ids);
    else if (key == "logit_bias_ids") {
      const std::vector<double>& biases = test.args.at("logit_bias_values");
      for (std::size_t i = 0; i < ids.size(); ++i)
        params.logit_bias.emplace_back(ids[i], static_cast<float>(biases[i]));
    } else if (key == "forced_positions") {
      const std::vector<double>& forced = test.args.at("forced_ids");
      for (std::size_t i = 0; i < ids.size(); ++i)
        params.forced_tokens.emplace_back(ids[i], static_cast<TokenId>(forced[i]));
    } else if (key != "logit_bias_values" && key != "forced_ids" && key != "eos_ids") {
      REQUIRE_MESSAGE(set_number(params, key, values.at(0)), "unknown key " << key);
    }
  }
  return params;
}

/// Same tokens are -inf, others differ by a few roundings.
bool is_close(const std::vector<float>& got, const std::vector<float>& want) {
  constexpr float kRoundings = 4.0F;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if ((got[i] == kForbidden) != (want[i] == kForbidden)) return false;
    const float tolerance = kRoundings * std::numeric_limits<float>::epsilon() * std::max(1.0F, std::abs(want[i]));
    if (want[i] != kForbidden && !(std::abs(got[i] - want[i]) <= tolerance)) return false;
  }
  return got.size() == want.size();
}

std::string shown(const std::vector<float>& row) {
  std::ostringstream text;
  for (const float value : row) text << value << ' ';
  return text.str();
}

TEST_CASE("SequenceSampler_GoldenRows_GivesWhatOthersComputed") {
  const std::vector<Case> cases = read_cases(GENAI_TESTS_DIR "/golden/sampling.txt");
  CHECK(cases.size() > 300);
  for (const Case& test : cases) {
    const SamplingParams params = params_of(test);
    const auto vocab_size = static_cast<std::int64_t>(test.steps.front().logits.size());
    const auto eos = test.args.find("eos_ids");
    const std::vector<TokenId> eos_ids =
        eos == test.args.end() ? std::vector<TokenId>() : cast_all<TokenId>(eos->second);
    SequenceSampler sampler(params, eos_ids, vocab_size, 1, 0);
    const RowContext context{.tokens = test.tokens, .num_prompt_tokens = test.num_prompt_tokens};
    for (const Step& step : test.steps) {
      std::vector<float> row = step.logits;

      sampler.process(row, context);
      const bool is_all_forbidden = std::ranges::all_of(row, [](float logit) { return logit == kForbidden; });
      if (is_all_forbidden)
        CHECK_THROWS_AS(sampler.filter(row, context), Error);
      else
        sampler.filter(row, context);

      CHECK_MESSAGE(is_close(row, step.expected), test.name << "\n in   " << shown(step.logits) << "\n got  "
                                                            << shown(row) << "\n want " << shown(step.expected));
      if (step.taken) sampler.commit(*step.taken, row);
    }
  }
}

}  // namespace
}  // namespace genai::sampling
