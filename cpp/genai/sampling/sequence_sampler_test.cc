#include "genai/sampling/sequence_sampler.h"

#include "genai/base/error.h"
#include "genai/sampling/min_p.h"
#include "genai/sampling/mirostat.h"
#include "genai/sampling/test_candidates.h"
#include "genai/sampling/top_a.h"
#include "genai/sampling/top_k.h"
#include "genai/sampling/top_p.h"
#include "genai/sampling/typical_p.h"
#include "genai/sampling/xtc.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace genai::sampling {
namespace {

using test::candidates_of_logits;
using test::kForbidden;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<TokenId> kPrompt = {0};

/// A context at output position `tokens.size() - 1`.
RowContext after(const std::vector<TokenId>& tokens) {
  return {.tokens = tokens, .num_prompt_tokens = 1};
}

SequenceSampler make_sampler(const SamplingParams& params, std::size_t vocab_size, std::uint64_t seed = 1,
                             int choice = 0) {
  return SequenceSampler(params, {}, static_cast<std::int64_t>(vocab_size), seed, choice);
}

std::vector<float> random_row(std::size_t size, float spread, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> row(size);
  for (float& logit : row) logit = random() % 20 == 0 ? kForbidden : normal(random);
  row[random() % size] = 2.0F * spread;
  return row;
}

std::vector<TokenId> kept_ids(const std::vector<float>& row) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] != kForbidden) ids.push_back(static_cast<TokenId>(i));
  }
  return ids;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// ---- greedy ----

TEST_CASE("Greedy_Ties_TakesLowestIdForAnySeed") {
  const SamplingParams params{.temperature = 0.0F};
  const std::vector<float> row = {1.0F, 3.0F, kNaN, 3.0F};
  for (const std::uint64_t seed : {1U, 2U, 3U}) CHECK(make_sampler(params, 4, seed).sample(row, after(kPrompt)) == 1);
}

TEST_CASE("Greedy_FiltersAreSet_IgnoresThem") {
  SamplingParams params{.temperature = 0.0F, .top_k = 1, .top_p = 0.1F, .mirostat = 2, .xtc_probability = 1.0F};
  params.xtc_threshold = 0.01F;
  std::vector<float> row = {1.0F, 3.0F, 2.9F};
  SequenceSampler sampler = make_sampler(params, 3);

  CHECK(sampler.sample(row, after(kPrompt)) == 1);
  sampler.filter(row, after(kPrompt));
  CHECK(row == std::vector<float>{1.0F, 3.0F, 2.9F});
}

// ---- which tokens are drawn ----

TEST_CASE("Sample_SeedOrChoiceOrPositionDiffers_DrawsOtherTokens") {
  const std::vector<float> row(1000, 1.0F);
  const SamplingParams params;
  const auto draws = [&](std::uint64_t seed, int choice) {
    SequenceSampler sampler = make_sampler(params, row.size(), seed, choice);
    std::vector<TokenId> tokens = kPrompt;
    for (int i = 0; i < 20; ++i) tokens.push_back(sampler.sample(row, after(tokens)));
    return tokens;
  };

  CHECK(draws(1, 0) == draws(1, 0));
  CHECK(draws(1, 0) != draws(2, 0));
  CHECK(draws(1, 0) != draws(1, 1));
  CHECK(std::ranges::count(draws(1, 0), draws(1, 0)[1]) < 5);
}

TEST_CASE("Sample_OtherSamplersRunBetween_DrawsTheSame") {
  const std::vector<float> row = random_row(300, 2.0F, 4);
  const SamplingParams params{.temperature = 0.9F, .top_k = 40};
  SequenceSampler alone = make_sampler(params, row.size(), 5);
  SequenceSampler resumed = make_sampler(params, row.size(), 5);
  const std::vector<TokenId> later = {0, 1, 2, 3};

  static_cast<void>(alone.sample(row, after(kPrompt)));

  CHECK(alone.sample(row, after(later)) == resumed.sample(row, after(later)));
}

TEST_CASE("Sample_Row_IsLeftAsItIs") {
  const std::vector<float> row = random_row(300, 2.0F, 4);
  std::vector<float> copy = row;
  SequenceSampler sampler = make_sampler({.temperature = 0.5F, .top_k = 5, .top_p = 0.9F}, row.size());

  static_cast<void>(sampler.sample(copy, after(kPrompt)));

  CHECK(copy == row);
}

TEST_CASE("Sample_TinyTemperature_TakesTheArgmax") {
  const std::vector<float> row = {1.0F, 1.5F, 1.499F, -3.0F};
  for (const float temperature : {1e-8F, 1e-30F, 1e-45F}) {
    CHECK(make_sampler({.temperature = temperature}, 4).sample(row, after(kPrompt)) == 1);
    CHECK(make_sampler({.temperature = temperature, .top_p = 0.5F}, 4).sample(row, after(kPrompt)) == 1);
    CHECK(make_sampler({.temperature = temperature, .min_p = 0.5F}, 4).sample(row, after(kPrompt)) == 1);
  }
}

TEST_CASE("Sample_OneTokenVocabulary_TakesIt") {
  SamplingParams params{.top_k = 50, .top_p = 0.1F, .min_p = 1.0F, .typical_p = 0.1F, .top_a = 1.0F, .mirostat = 2};
  params.xtc_probability = 1.0F;
  CHECK(make_sampler(params, 1).sample(std::vector<float>{-4.0F}, after(kPrompt)) == 0);
  CHECK(make_sampler({}, 1).sample(std::vector<float>{-4.0F}, after(kPrompt)) == 0);
}

TEST_CASE("Sample_NaNInTheRow_NeverWins") {
  std::vector<float> row(200, kNaN);
  row[150] = -50.0F;
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.top_k = 3}, SamplingParams{.top_p = 0.5F},
                                       SamplingParams{.typical_p = 0.5F}}) {
    CHECK(make_sampler(params, row.size()).sample(row, after(kPrompt)) == 150);
  }
}

TEST_CASE("Sample_PlusInfinityFromAHook_TakesOneOfThese") {
  std::vector<float> row(100, 1.0F);
  row[7] = row[70] = kInfinity;
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.top_p = 0.9F}}) {
    SequenceSampler sampler = make_sampler(params, row.size());
    std::map<TokenId, int> counts;
    std::vector<TokenId> tokens = kPrompt;
    for (int i = 0; i < 100; ++i) {
      ++counts[sampler.sample(row, after(tokens))];
      tokens.push_back(0);
    }
    CHECK(counts[7] > 20);
    CHECK(counts[7] + counts[70] == 100);
  }
}

TEST_CASE("Sample_PaddedRow_NeverTakesAnIdBeyondTheVocabulary") {
  const std::vector<float> row = {1.0F, 2.0F, 99.0F, 99.0F};
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0.0F}, SamplingParams{}, SamplingParams{.top_k = 1}}) {
    SequenceSampler sampler = make_sampler(params, 2);
    std::vector<float> filtered = row;

    CHECK(sampler.sample(row, after(kPrompt)) < 2);
    sampler.filter(filtered, after(kPrompt));
    CHECK(filtered[2] == kForbidden);
    CHECK(filtered[3] == kForbidden);
  }
}

// ---- errors ----

TEST_CASE("Sample_EveryTokenForbidden_NamesTheProcessors") {
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingParams params{.temperature = temperature, .no_repeat_ngram_size = 1};
    params.suppress_tokens = {1};
    SequenceSampler sampler = make_sampler(params, 2);
    std::vector<float> row = {1.0F, 2.0F};

    sampler.process(row, after(kPrompt));

    CHECK(message_of([&] { static_cast<void>(sampler.sample(row, after(kPrompt))); }) ==
          "every token is forbidden at output position 0 by no_repeat_ngram_size, suppress_tokens; allow at least one");
  }
}

TEST_CASE("Sample_RowNarrowerThanTheVocabulary_IsAnInternalError") {
  SequenceSampler sampler = make_sampler({}, 3);
  std::vector<float> row = {1.0F, 2.0F};

  CHECK_THROWS_AS(static_cast<void>(sampler.sample(row, after(kPrompt))), Error);
  CHECK_THROWS_AS(sampler.process(row, after(kPrompt)), Error);
  CHECK_THROWS_AS(sampler.filter(row, after(kPrompt)), Error);
}

// ---- stage 1 order ----

TEST_CASE("Process_BiasOnABannedToken_DoesNotReviveIt") {
  SamplingParams params;
  params.logit_bias = {{1, 100.0F}};
  params.suppress_tokens = {1};
  params.frequency_penalty = -2.0F;
  std::vector<float> row = {0.0F, 5.0F, kForbidden};

  make_sampler(params, 3).process(row, after({0, 1, 2}));

  CHECK(row[1] == kForbidden);
  CHECK(row[2] == kForbidden);
}

TEST_CASE("Process_ForcedToken_WinsOverEveryBan") {
  SamplingParams params{.no_repeat_ngram_size = 1};
  params.suppress_tokens = {0};
  params.forced_tokens = {{0, 0}};
  SequenceSampler sampler = make_sampler(params, 3);
  std::vector<float> row = {1.0F, 2.0F, 3.0F};

  sampler.process(row, after(kPrompt));

  CHECK(row == std::vector<float>{0.0F, kForbidden, kForbidden});
  CHECK(sampler.sample(row, after(kPrompt)) == 0);
}

TEST_CASE("Process_MinNewTokens_ForbidsEosAndStopIdsUntilThen") {
  SamplingParams params{.min_new_tokens = 2};
  params.stop_token_ids = {2};
  SequenceSampler sampler(params, std::vector<TokenId>{1}, 4, 1, 0);

  std::vector<float> early = {0.0F, 0.0F, 0.0F, 0.0F};
  sampler.process(early, after({0, 3}));
  std::vector<float> late = {0.0F, 0.0F, 0.0F, 0.0F};
  sampler.process(late, after({0, 3, 3}));

  CHECK(early == std::vector<float>{0.0F, kForbidden, kForbidden, 0.0F});
  CHECK(late == std::vector<float>{0.0F, 0.0F, 0.0F, 0.0F});
}

TEST_CASE("Process_BiasThenRepetition_PenalisesTheBiasedLogit") {
  SamplingParams params{.repetition_penalty = 2.0F};
  params.logit_bias = {{0, 3.0F}};
  std::vector<float> row = {1.0F, 1.0F};

  make_sampler(params, 2).process(row, after(kPrompt));

  CHECK(row == std::vector<float>{2.0F, 1.0F});
}

TEST_CASE("Process_SequenceIsRewound_PenalisesOnlyWhatIsLeft") {
  SequenceSampler sampler = make_sampler({.frequency_penalty = 1.0F}, 3);
  std::vector<float> row = {0.0F, 0.0F, 0.0F};
  sampler.process(row, after({0, 1, 1, 2}));

  row = {0.0F, 0.0F, 0.0F};
  sampler.process(row, after({0, 1}));

  CHECK(row == std::vector<float>{0.0F, -1.0F, 0.0F});
}

TEST_CASE("HasProcessors_OnlyStageTwoIsOn_IsFalse") {
  CHECK_FALSE(make_sampler({.temperature = 0.7F, .top_k = 5, .mirostat = 2}, 9).has_processors());
  CHECK_FALSE(make_sampler({.min_new_tokens = 3}, 9).has_processors());  // no EOS, no stop ids
  CHECK(make_sampler({.presence_penalty = 0.1F}, 9).has_processors());
  CHECK(SequenceSampler({.min_new_tokens = 3}, std::vector<TokenId>{1}, 9, 1, 0).has_processors());
}

// ---- stage 2: the shortcuts over blocks and thresholds keep what the definitions on the full list keep ----

std::vector<TokenId> kept_by_definition(const SamplingParams& params, std::span<const float> row) {
  Candidates candidates = candidates_of_logits(row);
  apply_top_k(candidates, static_cast<std::size_t>(params.top_k));
  scale_logits(candidates, 0.0F, 1.0F / params.temperature);
  apply_top_p(candidates, params.top_p);
  apply_min_p(candidates, params.min_p);
  apply_top_a(candidates, params.top_a);
  apply_typical_p(candidates, params.typical_p);
  if (params.mirostat == 2) Mirostat(params.mirostat_tau, params.mirostat_eta).apply(candidates);
  if (params.xtc_probability == 1.0F) apply_xtc(candidates, params.xtc_threshold);
  return candidates.ids;
}

TEST_CASE("Filter_AnyMixOfFilters_KeepsWhatTheDefinitionsKeep") {
  std::mt19937 random(77);
  const auto one_of = [&](std::initializer_list<float> values) { return values.begin()[random() % values.size()]; };
  for (std::uint32_t round = 0; round < 600; ++round) {
    SamplingParams params;
    params.temperature = one_of({0.3F, 1.0F, 1.0F, 4.0F});
    params.top_k = static_cast<std::int64_t>(one_of({0, 0, 1, 5, 40, 200, 5000}));
    params.top_p = one_of({1.0F, 1.0F, 0.1F, 0.9F, 0.9999F});
    params.min_p = one_of({0.0F, 0.0F, 0.05F, 0.9F});
    params.top_a = one_of({0.0F, 0.0F, 0.2F, 1.0F});
    params.typical_p = one_of({1.0F, 1.0F, 0.5F});
    params.mirostat = random() % 3 == 0 ? 2 : 0;
    params.mirostat_tau = one_of({0.1F, 1.0F, 5.0F});
    params.xtc_probability = one_of({0.0F, 1.0F});
    params.xtc_threshold = one_of({0.01F, 0.1F, 0.5F});
    const std::size_t size = 1 + random() % 3000;
    const std::vector<float> row = random_row(size, one_of({0.0F, 0.5F, 2.0F, 8.0F}), round);
    std::vector<float> filtered = row;

    make_sampler(params, size).filter(filtered, after(kPrompt));

    CHECK(kept_ids(filtered) == kept_by_definition(params, row));
    for (const TokenId id : kept_ids(filtered)) {
      CHECK(filtered[static_cast<std::size_t>(id)] == row[static_cast<std::size_t>(id)] / params.temperature);
    }
  }
}

TEST_CASE("Filter_ThenCommit_MovesMirostatAsSampleDoes") {
  const SamplingParams params{.mirostat = 2, .mirostat_tau = 1.5F, .mirostat_eta = 0.7F};
  const std::size_t size = 500;
  SequenceSampler drawing = make_sampler(params, size);
  SequenceSampler hooked = make_sampler(params, size);
  std::vector<TokenId> tokens = kPrompt;
  for (std::uint32_t step = 0; step < 30; ++step) {
    const std::vector<float> row = random_row(size, 2.0F, step);
    std::vector<float> filtered = row;

    hooked.filter(filtered, after(tokens));
    const TokenId token = drawing.sample(row, after(tokens));
    hooked.commit(token, filtered);

    std::vector<float> by_drawing = row;
    std::vector<float> by_hook = row;
    drawing.filter(by_drawing, after(tokens));
    hooked.filter(by_hook, after(tokens));
    CHECK(kept_ids(by_drawing) == kept_ids(by_hook));
    tokens.push_back(token);
  }
}

TEST_CASE("Commit_FilteredToken_LeavesTheStateAsItIs") {
  SequenceSampler sampler = make_sampler({.mirostat = 2, .mirostat_tau = 1.0F}, 3);
  const std::vector<float> filtered = {0.0F, kForbidden, -1.0F};

  sampler.commit(1, filtered);

  std::vector<float> row = {0.0F, -0.2F, -0.4F};  // all within two bits
  sampler.filter(row, after(kPrompt));
  CHECK(kept_ids(row) == std::vector<TokenId>{0, 1, 2});
}

TEST_CASE("Xtc_ProbabilityHalf_ActsAtHalfOfThePositions") {
  const SamplingParams params{.xtc_probability = 0.5F, .xtc_threshold = 0.1F};
  const std::vector<float> row = {1.0F, 1.0F, 1.0F};
  SequenceSampler sampler = make_sampler(params, 3);
  std::vector<TokenId> tokens = kPrompt;
  int acted = 0;
  constexpr int kSteps = 10000;
  for (int i = 0; i < kSteps; ++i) {
    std::vector<float> filtered = row;
    sampler.filter(filtered, after(tokens));
    acted += kept_ids(filtered).size() == 1 ? 1 : 0;
    tokens.push_back(0);
  }

  CHECK(std::abs(acted - kSteps / 2) < 4 * 50);  // four standard deviations, sqrt(10000) / 2 each
}

// ---- distribution ----

/// Chi-square of 1e5 draws against exact probabilities; classes that expect fewer than 5 draws are joined.
struct ChiSquare {
  double value = 0.0;
  int degrees = -1;
};

ChiSquare chi_square(const SamplingParams& params, const std::vector<float>& row) {
  constexpr int kDraws = 100000;
  std::vector<float> filtered = row;
  SequenceSampler sampler = make_sampler(params, row.size(), 20261129);
  sampler.filter(filtered, after(kPrompt));
  double sum = 0.0;
  std::vector<double> p(row.size());
  const std::vector<TokenId> kept = kept_ids(filtered);
  for (const TokenId id : kept) {
    const auto i = static_cast<std::size_t>(id);
    p[i] = std::exp(static_cast<double>(row[i]) / static_cast<double>(params.temperature));
    sum += p[i];
  }
  std::vector<int> counts(row.size());
  std::vector<TokenId> tokens(kDraws + 1, 0);
  for (std::size_t position = 0; position < kDraws; ++position) {
    const RowContext context{.tokens = std::span(tokens).first(position + 1), .num_prompt_tokens = 1};
    ++counts[static_cast<std::size_t>(sampler.sample(row, context))];
  }
  ChiSquare result;
  double rare_expected = 0.0;
  double rare_count = 0.0;
  const auto add = [&](double expected, double count) {
    result.value += (count - expected) * (count - expected) / expected;
    ++result.degrees;
  };
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double expected = p[i] / sum * kDraws;
    if (p[i] == 0.0) CHECK(counts[i] == 0);
    if (expected >= 5.0) {
      add(expected, counts[i]);
    } else {
      rare_expected += expected;
      rare_count += counts[i];
    }
  }
  if (rare_expected >= 5.0) add(rare_expected, rare_count);
  return result;
}

TEST_CASE("Sample_HundredThousandDraws_FollowTheSoftmaxOfWhatIsKept") {
  const std::vector<float> row = random_row(300, 2.0F, 12);
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.temperature = 0.6F}, SamplingParams{.temperature = 0.8F, .top_k = 20},
        SamplingParams{.top_p = 0.8F}, SamplingParams{.temperature = 1.4F, .top_k = 50, .top_p = 0.9F},
        SamplingParams{.min_p = 0.02F}, SamplingParams{.typical_p = 0.7F}}) {
    const ChiSquare got = chi_square(params, row);

    // Mean k and variance 2k: a value above k + 4 * sqrt(2k) has a chance below 1 in 1000.
    CHECK(got.degrees >= 5);
    CHECK(got.value < got.degrees + 4.0 * std::sqrt(2.0 * got.degrees));
  }
}

}  // namespace
}  // namespace genai::sampling
