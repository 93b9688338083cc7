#include "genai/sampling/validate.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>

namespace genai::sampling {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The message of the error that the changed parameters give, "" for none.
std::string refusal(const std::function<void(SamplingParams&)>& change, std::int64_t vocab_size = 10) {
  SamplingParams params;
  change(params);
  try {
    validate(params, vocab_size);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("Validate_Defaults_AreAccepted") {
  CHECK(refusal([](SamplingParams&) {}).empty());
}

TEST_CASE("Validate_ValuesAtTheirLimits_AreAccepted") {
  CHECK(refusal([](SamplingParams& p) { p.temperature = 0.0F; }).empty());
  CHECK(refusal([](SamplingParams& p) { p.temperature = 1e-30F; }).empty());
  CHECK(refusal([](SamplingParams& p) { p.top_k = 1000; }).empty());
  CHECK(refusal([](SamplingParams& p) { p.top_p = 1e-9F; }).empty());
  CHECK(refusal([](SamplingParams& p) { p.min_p = 1.0F; }).empty());
  CHECK(refusal([](SamplingParams& p) { p.logit_bias = {{9, -kInfinity}}; }).empty());
  CHECK(refusal([](SamplingParams& p) { p.stop_token_ids = {0, 9}; }).empty());
}

TEST_CASE("Validate_NumberOutOfRange_NamesParameterValueAndLimit") {
  const std::string message = refusal([](SamplingParams& p) { p.top_p = 1.5F; });

  CHECK(message == "top_p is 1.5; allowed: > 0 and <= 1");
}

TEST_CASE("Validate_RealsOutOfRange_AreRefused") {
  for (const float bad : {-1.0F, kNaN, kInfinity}) {
    CHECK(has(refusal([&](SamplingParams& p) { p.temperature = bad; }), "temperature is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.top_p = bad; }), "top_p is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.min_p = bad; }), "min_p is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.typical_p = bad; }), "typical_p is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.top_a = bad; }), "top_a is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.mirostat_tau = bad; }), "mirostat_tau is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.mirostat_eta = bad; }), "mirostat_eta is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.xtc_probability = bad; }), "xtc_probability is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.xtc_threshold = bad; }), "xtc_threshold is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.repetition_penalty = bad; }), "repetition_penalty is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.dry_multiplier = bad; }), "dry_multiplier is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.dry_base = bad; }), "dry_base is "));
  }
  for (const float bad : {-2.5F, 2.5F, kNaN}) {
    CHECK(has(refusal([&](SamplingParams& p) { p.frequency_penalty = bad; }), "frequency_penalty is "));
    CHECK(has(refusal([&](SamplingParams& p) { p.presence_penalty = bad; }), "presence_penalty is "));
  }
}

TEST_CASE("Validate_WholeNumbersOutOfRange_AreRefused") {
  CHECK(has(refusal([](SamplingParams& p) { p.top_k = -1; }), "top_k is -1"));
  CHECK(has(refusal([](SamplingParams& p) { p.mirostat = 1; }), "mirostat is 1"));
  CHECK(has(refusal([](SamplingParams& p) { p.n = 0; }), "n is 0"));
  CHECK(has(refusal([](SamplingParams& p) { p.n = 129; }), "n is 129"));
  CHECK(has(refusal([](SamplingParams& p) { p.top_logprobs = 21; }), "top_logprobs is 21"));
  CHECK(has(refusal([](SamplingParams& p) { p.dry_allowed_length = 0; }), "dry_allowed_length is 0"));
  CHECK(has(refusal([](SamplingParams& p) { p.no_repeat_ngram_size = -1; }), "no_repeat_ngram_size is -1"));
  CHECK(has(refusal([](SamplingParams& p) { p.min_new_tokens = -1; }), "min_new_tokens is -1"));
  CHECK(has(refusal([](SamplingParams& p) { p.max_new_tokens = -1; }), "max_new_tokens is -1"));
}

TEST_CASE("Validate_IdOutsideTheVocabulary_NamesItAndTheLimit") {
  CHECK(refusal([](SamplingParams& p) { p.stop_token_ids = {1, 10}; }) ==
        "stop_token_ids[1] is 10; allowed: token ids of this model, 0 to 9");
  CHECK(has(refusal([](SamplingParams& p) { p.suppress_tokens = {-1}; }), "suppress_tokens[0] is -1"));
  CHECK(has(refusal([](SamplingParams& p) { p.begin_suppress_tokens = {10}; }), "begin_suppress_tokens[0] is 10"));
  CHECK(has(refusal([](SamplingParams& p) { p.dry_sequence_breakers = {10}; }), "dry_sequence_breakers[0] is 10"));
  CHECK(has(refusal([](SamplingParams& p) { p.logit_bias = {{10, 1.0F}}; }), "logit_bias is 10"));
  CHECK(has(refusal([](SamplingParams& p) { p.bad_words = {{1}, {2, 10}}; }), "bad_words[1][1] is 10"));
  CHECK(has(refusal([](SamplingParams& p) { p.forced_tokens = {{3, 10}}; }), "forced_tokens[3] is 10"));
  CHECK(has(refusal([](SamplingParams& p) { p.forced_tokens = {{-1, 1}}; }), "key of forced_tokens is -1"));
}

TEST_CASE("Validate_MeaninglessEntries_AreRefused") {
  CHECK(has(refusal([](SamplingParams& p) { p.logit_bias = {{1, kNaN}}; }), "logit_bias[1] is nan"));
  CHECK(has(refusal([](SamplingParams& p) { p.logit_bias = {{1, kInfinity}}; }), "logit_bias[1] is inf"));
  CHECK(has(refusal([](SamplingParams& p) { p.bad_words = {{}}; }), "bad_words[0] is empty"));
  CHECK(has(refusal([](SamplingParams& p) { p.stop = {"a", ""}; }), "stop[1] is \"\""));
}

TEST_CASE("Validate_EveryTokenForbidden_SaysSo") {
  const auto forbid_all = [](SamplingParams& p) {
    p.suppress_tokens = {0};
    p.logit_bias = {{1, -kInfinity}};
    p.bad_words = {{2}};
  };

  CHECK(has(refusal(forbid_all, 3), "together forbid all 3 tokens"));
  CHECK(refusal(forbid_all, 4).empty());
}

TEST_CASE("Validate_BeamsThatContradictOthers_AreRefused") {
  const auto beams = [](SamplingParams& p) {
    p.num_beams = 4;
    p.temperature = 0.0F;
  };
  CHECK(refusal(beams).empty());
  CHECK(has(refusal([](SamplingParams& p) { p.num_beams = 0; }), "num_beams is 0"));
  CHECK(has(refusal([](SamplingParams& p) { p.num_beams = 129; }), "num_beams is 129"));
  CHECK(
      has(refusal([](SamplingParams& p) { p.num_beams = 2; }), "temperature is 1; allowed: 0 with num_beams above 1"));
  CHECK(has(refusal([&](SamplingParams& p) { beams(p), p.mirostat = 2; }), "mirostat is 2"));
  CHECK(has(refusal([&](SamplingParams& p) { beams(p), p.n = 5; }), "n is 5; allowed: at most num_beams, which is 4"));
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    CHECK(has(refusal([&](SamplingParams& p) { beams(p), p.length_penalty = bad; }), "length_penalty is "));
  }
}

}  // namespace
}  // namespace genai::sampling
