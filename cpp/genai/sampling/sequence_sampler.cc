#include "genai/sampling/sequence_sampler.h"

#include "genai/base/error.h"
#include "genai/base/random.h"
#include "genai/sampling/bad_words.h"
#include "genai/sampling/ban_tokens.h"
#include "genai/sampling/candidates.h"
#include "genai/sampling/dry.h"
#include "genai/sampling/forced_token.h"
#include "genai/sampling/frequency_presence_penalty.h"
#include "genai/sampling/logit_bias.h"
#include "genai/sampling/min_p.h"
#include "genai/sampling/mirostat.h"
#include "genai/sampling/no_repeat_ngram.h"
#include "genai/sampling/repetition_penalty.h"
#include "genai/sampling/row_index.h"
#include "genai/sampling/temperature.h"
#include "genai/sampling/token_counts.h"
#include "genai/sampling/top_a.h"
#include "genai/sampling/top_k.h"
#include "genai/sampling/top_p.h"
#include "genai/sampling/typical_p.h"
#include "genai/sampling/xtc.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace genai::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();

/// What a random number is for: the low half of its stream; the high half is the choice.
enum class Purpose : std::uint32_t { kToken = 0, kXtc = 1 };

/// Names of the processors that forbid tokens and are on.
std::string banning_processors(const SamplingParams& params) {
  std::string names;
  const auto add = [&](bool is_on, std::string_view name) {
    if (is_on) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(!params.logit_bias.empty(), "logit_bias");
  add(params.no_repeat_ngram_size > 0, "no_repeat_ngram_size");
  add(!params.bad_words.empty(), "bad_words");
  add(params.min_new_tokens > 0, "min_new_tokens");
  add(!params.suppress_tokens.empty(), "suppress_tokens");
  add(!params.begin_suppress_tokens.empty(), "begin_suppress_tokens");
  return names;
}

}  // namespace

struct SequenceSampler::Impl {
  Impl(const SamplingParams& sampling_params, std::span<const TokenId> eos_ids, std::int64_t vocab, std::uint64_t seed_,
       int choice_)
      : params(sampling_params),
        vocab_size(static_cast<std::size_t>(vocab)),
        seed(seed_),
        choice(static_cast<std::uint64_t>(choice_)),
        uses_counts(params.repetition_penalty != 1.0F || params.frequency_penalty != 0.0F ||
                    params.presence_penalty != 0.0F),
        end_ids(eos_ids.begin(), eos_ids.end()) {
    end_ids.insert(end_ids.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
    if (params.mirostat == 2) mirostat.emplace(params.mirostat_tau, params.mirostat_eta);
  }

  // Which parts of stage 2 are on. Greedy has none.
  bool is_greedy() const { return params.temperature == 0.0F; }
  bool uses_top_k() const { return params.top_k > 0 && static_cast<std::size_t>(params.top_k) < vocab_size; }
  bool uses_top_p() const { return params.top_p < 1.0F; }
  bool xtc_acts(std::uint64_t position) const {
    return params.xtc_probability > 0.0F &&
           random(Purpose::kXtc, position) < static_cast<double>(params.xtc_probability);
  }
  bool has_filters(std::uint64_t position) const {
    return uses_top_k() || uses_top_p() || params.min_p > 0.0F || params.top_a > 0.0F || params.typical_p < 1.0F ||
           mirostat || xtc_acts(position);
  }

  double random(Purpose purpose, std::uint64_t position) const {
    return uniform_at(seed, (choice << 32U) | static_cast<std::uint32_t>(purpose), position);
  }

  void apply_bans(std::span<float> row, const RowContext& context);
  void read_row(std::span<const float> row, std::uint64_t position);
  double sum_exp_row();
  float threshold_at(double scaled_logit) const;
  void collect_first();
  void collect_top_p();
  void collect_from(double scaled_logit, double total);
  void select(std::uint64_t position);
  TokenId draw_from_row(double u);

  const SamplingParams params;
  const std::size_t vocab_size;
  const std::uint64_t seed;
  const std::uint64_t choice;
  const bool uses_counts;
  std::vector<TokenId> end_ids;  ///< forbidden before min_new_tokens

  TokenCounts counts;
  std::optional<Mirostat> mirostat;

  RowIndex index;
  std::vector<float> block_sums;
  Candidates candidates;
  DryScratch dry_scratch;
};

/// The bans are final because they come last; a forced id overrules them.
void SequenceSampler::Impl::apply_bans(std::span<float> row, const RowContext& context) {
  const std::size_t position = context.generated().size();
  ban_repeated_ngrams(row, context.tokens, static_cast<std::size_t>(params.no_repeat_ngram_size));
  ban_bad_words(row, context.tokens, params.bad_words);
  if (position < static_cast<std::size_t>(params.min_new_tokens)) ban_tokens(row, end_ids);
  ban_tokens(row, params.suppress_tokens);
  if (position == 0) ban_tokens(row, params.begin_suppress_tokens);
  for (const auto& [forced_position, token] : params.forced_tokens) {
    if (static_cast<std::size_t>(forced_position) == position) force_token(row, token);
  }
}

void SequenceSampler::Impl::read_row(std::span<const float> row, std::uint64_t position) {
  check(row.size() >= vocab_size, "a logits row is narrower than the vocabulary");
  index.read(row.first(vocab_size));
  if (index.scan().max > kForbidden) return;
  const std::string names = banning_processors(params);
  throw Error(ErrorCode::kInvalidArgument, "every token is forbidden at output position " + std::to_string(position) +
                                               " by " + (names.empty() ? "the model or a logits processor" : names) +
                                               "; allow at least one");
}

/// Sum of exp of all scaled logits; fills block_sums.
double SequenceSampler::Impl::sum_exp_row() {
  block_sums.resize(num_blocks(vocab_size));
  kernels(best_isa())
      .sum_exp_blocks(index.row().data(), vocab_size, index.scan().max, temperature_scale(params.temperature),
                      block_sums.data());
  return sum_of_blocks(block_sums);
}

/// A raw logit that is not above any whose scaled value (0 for the largest) is `scaled_logit` or more.
float SequenceSampler::Impl::threshold_at(double scaled_logit) const {
  constexpr double kMargin = 1e-3;  // far above the rounding of a scaled logit
  const double raw = static_cast<double>(index.scan().max) +
                     (scaled_logit - kMargin) / static_cast<double>(temperature_scale(params.temperature));
  if (raw <= static_cast<double>(kLowest)) return kLowest;
  return std::max(std::nextafter(static_cast<float>(raw), kForbidden), kLowest);
}

/// Lists the tokens down to a scaled logit; the others, which the next filter removes, become the tail.
void SequenceSampler::Impl::collect_from(double scaled_logit, double total) {
  index.collect(threshold_at(scaled_logit), candidates);
  scale_logits(candidates, index.scan().max, temperature_scale(params.temperature));
  candidates.tail_weight = std::max(0.0, total - total_weight(candidates));
}

/// Lists at least the tokens that top-p keeps.
void SequenceSampler::Impl::collect_top_p() {
  const double total = sum_exp_row();
  for (const double depth : {4.0, 8.0, 16.0}) {
    collect_from(-depth, total);
    if (total - candidates.tail_weight >= static_cast<double>(params.top_p) * total) return;
  }
  index.collect(kLowest, candidates);
  scale_logits(candidates, index.scan().max, temperature_scale(params.temperature));
}

/// Lists the candidates for the first filter that is on: all it may keep, and no more than needed, because listing is
/// the expensive part. Top-k is done here, before the division, where equal logits are exactly equal.
void SequenceSampler::Impl::collect_first() {
  const float scale = temperature_scale(params.temperature);
  const float max = index.scan().max;
  if (index.scan().has_pos_inf) {  // only a hook makes such rows: these tokens alone, with equal chances
    index.collect(max, candidates);
    std::ranges::fill(candidates.logits, 0.0F);
    scale_logits(candidates, 0.0F, 1.0F);
  } else if (uses_top_k()) {
    const auto k = static_cast<std::size_t>(params.top_k);
    index.collect(index.reached_by(k), candidates);
    candidates.weights.resize(candidates.size());
    apply_top_k(candidates, k);
    scale_logits(candidates, max, scale);
  } else if (uses_top_p()) {
    collect_top_p();
  } else if (params.min_p > 0.0F) {
    index.collect(threshold_at(std::log(static_cast<double>(params.min_p))), candidates);
    scale_logits(candidates, max, scale);
  } else if (params.top_a > 0.0F) {
    const double total = sum_exp_row();
    collect_from(std::log(static_cast<double>(params.top_a) / total), total);
  } else if (params.typical_p >= 1.0F && mirostat) {
    const double total = sum_exp_row();
    collect_from(std::min(0.0, std::log(total) - mirostat->mu() * std::numbers::ln2), total);
  } else {
    index.collect(kLowest, candidates);
    scale_logits(candidates, max, scale);
  }
}

/// Temperature and all filters: `candidates` are the tokens that may be drawn.
void SequenceSampler::Impl::select(std::uint64_t position) {
  collect_first();
  apply_top_p(candidates, params.top_p);
  apply_min_p(candidates, params.min_p);
  apply_top_a(candidates, params.top_a);
  apply_typical_p(candidates, params.typical_p);
  if (mirostat) mirostat->apply(candidates);
  if (xtc_acts(position)) apply_xtc(candidates, params.xtc_threshold);
}

/// Draws from the whole row, without a list: the block first, then the token in it.
TokenId SequenceSampler::Impl::draw_from_row(double u) {
  const double target = u * sum_exp_row();
  std::size_t block = 0;
  double sum = 0.0;
  std::size_t last_block = 0;  // with any weight
  for (; block < block_sums.size(); ++block) {
    if (block_sums[block] <= 0.0F) continue;
    last_block = block;
    if (sum + static_cast<double>(block_sums[block]) > target) break;
    sum += static_cast<double>(block_sums[block]);
  }
  if (block == block_sums.size()) sum = 0.0;  // target is the sum of all, by rounding: the last token
  const std::span<const float> row = index.row();
  const float scale = temperature_scale(params.temperature);
  const std::size_t first = last_block * kBlockSize;
  std::size_t last = first;  // with any weight
  for (std::size_t i = first; i < std::min(first + kBlockSize, row.size()); ++i) {
    const float weight = exp_of((row[i] - index.scan().max) * scale);
    if (weight <= 0.0F) continue;
    last = i;
    sum += static_cast<double>(weight);
    if (sum > target) break;
  }
  return static_cast<TokenId>(last);
}

SequenceSampler::SequenceSampler(const SamplingParams& params, std::span<const TokenId> eos_ids,
                                 std::int64_t vocab_size, std::uint64_t seed, int choice)
    : impl_(std::make_unique<Impl>(params, eos_ids, vocab_size, seed, choice)) {}

SequenceSampler::~SequenceSampler() = default;
SequenceSampler::SequenceSampler(SequenceSampler&&) noexcept = default;
SequenceSampler& SequenceSampler::operator=(SequenceSampler&&) noexcept = default;

bool SequenceSampler::has_processors() const {
  const SamplingParams& p = impl_->params;
  return impl_->uses_counts || p.dry_multiplier > 0.0F || p.no_repeat_ngram_size > 0 || !p.logit_bias.empty() ||
         !p.bad_words.empty() || (p.min_new_tokens > 0 && !impl_->end_ids.empty()) || !p.suppress_tokens.empty() ||
         !p.begin_suppress_tokens.empty() || !p.forced_tokens.empty();
}

void SequenceSampler::process(std::span<float> logits, const RowContext& context) {
  Impl& impl = *impl_;
  const SamplingParams& params = impl.params;
  check(logits.size() >= impl.vocab_size, "a logits row is narrower than the vocabulary");
  const std::span<float> row = logits.first(impl.vocab_size);

  apply_logit_bias(row, params.logit_bias);
  if (impl.uses_counts) {
    impl.counts.update(context.tokens, context.num_prompt_tokens);
    apply_repetition_penalty(row, impl.counts, params.repetition_penalty);
    apply_frequency_presence_penalty(row, impl.counts, params.frequency_penalty, params.presence_penalty);
  }
  apply_dry(row, context.tokens,
            {.multiplier = params.dry_multiplier,
             .base = params.dry_base,
             .allowed_length = static_cast<std::size_t>(params.dry_allowed_length),
             .sequence_breakers = params.dry_sequence_breakers},
            impl.dry_scratch);
  impl.apply_bans(row, context);
}

TokenId SequenceSampler::sample(std::span<const float> logits, const RowContext& context) {
  Impl& impl = *impl_;
  const std::uint64_t position = context.generated().size();
  if (impl.is_greedy()) {
    check(logits.size() >= impl.vocab_size, "a logits row is narrower than the vocabulary");
    const RowScan scan = scan_row(logits.first(impl.vocab_size));
    if (scan.max == kForbidden) impl.read_row(logits, position);  // throws
    return scan.argmax;
  }
  impl.read_row(logits, position);
  const double u = impl.random(Purpose::kToken, position);
  if (!impl.has_filters(position) && !impl.index.scan().has_pos_inf) return impl.draw_from_row(u);

  impl.select(position);
  const Candidates& candidates = impl.candidates;
  const std::size_t drawn = draw(candidates, u);
  if (impl.mirostat) {
    impl.mirostat->observe(std::log2(total_weight(candidates)) -
                           static_cast<double>(candidates.logits[drawn]) * std::numbers::log2e);
  }
  return candidates.ids[drawn];
}

void SequenceSampler::filter(std::span<float> logits, const RowContext& context) {
  Impl& impl = *impl_;
  std::ranges::fill(logits.subspan(std::min(impl.vocab_size, logits.size())), kForbidden);
  if (impl.is_greedy()) return;
  const std::uint64_t position = context.generated().size();
  impl.read_row(logits, position);
  const std::span<float> row = logits.first(impl.vocab_size);
  if (!impl.has_filters(position) && !impl.index.scan().has_pos_inf) {
    apply_temperature(row, impl.params.temperature);
    return;
  }
  impl.select(position);
  const Temperature temperature = make_temperature(impl.params.temperature, impl.index.scan());
  std::vector<float>& kept = impl.candidates.logits;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const float raw = row[static_cast<std::size_t>(impl.candidates.ids[i])];
    if (std::isfinite(raw)) kept[i] = temperature.of(raw);
  }
  std::ranges::fill(row, kForbidden);
  for (std::size_t i = 0; i < kept.size(); ++i) row[static_cast<std::size_t>(impl.candidates.ids[i])] = kept[i];
}

void SequenceSampler::commit(TokenId token, std::span<const float> filtered_logits) {
  if (!impl_->mirostat || impl_->is_greedy()) return;
  const float logit = filtered_logits[static_cast<std::size_t>(token)];
  if (!std::isfinite(logit)) return;
  const TokenLogprob score = RowLogprobs(filtered_logits, 0).score(token, logit);
  impl_->mirostat->observe(-static_cast<double>(score.logprob) * std::numbers::log2e);
}

}  // namespace genai::sampling
