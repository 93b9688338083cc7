#include "genai/engine/row_sampling.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <string>
#include <utility>

namespace genai::engine {
namespace {

sampling::RowContext context_of(const RowJob& job) {
  return {.tokens = job.tokens, .num_prompt_tokens = job.request->prompt.size()};
}

Error unusable_logits(const RowJob& job, const std::string& what) {
  const std::size_t position = job.tokens.size() - job.request->prompt.size();
  return {ErrorCode::kBackend, "the model returned unusable logits (" + what + ") for output token " +
                                   std::to_string(position) +
                                   ". The graph, its weights or the execution provider are faulty; try "
                                   "the CPU provider or another variant of the model."};
}

std::optional<Error> check_logits(const RowJob& job, const sampling::RowScan& scan) {
  if (scan.has_nan) return unusable_logits(job, "NaN");
  if (scan.has_pos_inf) return unusable_logits(job, "+inf");
  if (scan.max == -std::numeric_limits<float>::infinity()) return unusable_logits(job, "all -inf");
  if (job.vocab_size > 1 && !job.request->params.accept_equal_logits && scan.max == scan.min &&
      std::ranges::all_of(job.logits.first(job.vocab_size), [&](float x) { return x == scan.max; })) {
    return unusable_logits(job, "all equal to " + std::to_string(scan.max));
  }
  return std::nullopt;
}

bool changes_row(const RowJob& job) {
  return job.sampler->has_processors() || !job.request->logits_hooks.empty() || job.request->sampler_hook;
}

bool is_plain_greedy(const RowJob& job) {
  return job.beam == nullptr && job.request->params.temperature == 0.0F && !changes_row(job);
}

/// In float32 and in this order, (x - max) - log(sum), as PyTorch does: x - (max + log(sum)) loses digits of large
/// logits.
void log_softmax(std::span<float> row, const sampling::RowScan& scan) {
  const float log_sum = -sampling::RowLogprobs(row, 0).score(scan.argmax, scan.max).logprob;
  for (float& value : row) value = (value - scan.max) - log_sum;
}

/// Forbids what the bitmask does not allow.
void apply_bitmask(std::span<float> row, std::span<const std::uint32_t> bitmask) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  for (std::size_t word = 0; word * 32 < row.size(); ++word) {
    const std::uint32_t bits = word < bitmask.size() ? bitmask[word] : 0U;
    if (bits == ~std::uint32_t{0}) continue;
    const std::span<float> part = row.subspan(word * 32, std::min<std::size_t>(32, row.size() - word * 32));
    if (bits == 0) {
      std::ranges::fill(part, kForbidden);
      continue;
    }
    for (std::size_t i = 0; i < part.size(); ++i) {
      if ((bits >> i & 1U) == 0) part[i] = kForbidden;
    }
  }
}

/// Runs `body` for one row; what it throws becomes the row's error.
void guarded(RowJob& job, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    job.error = error;
  } catch (const std::exception& error) {
    job.error = Error(ErrorCode::kInternal, std::string("sampling failed: ") + error.what());
  }
}

void fail_group(std::span<RowJob* const> group, const Error& error) {
  for (RowJob* job : group) job->error = error;
}

/// Splits `jobs` into groups of equal key, in order of first appearance, and calls `body` with each group.
template <typename Key, typename Body>
void for_each_group(std::span<RowJob*> jobs, const Key& key, const Body& body) {
  std::vector<RowJob*> rest(jobs.begin(), jobs.end());
  while (!rest.empty()) {
    const auto wanted = key(*rest.front());
    const auto middle =
        std::stable_partition(rest.begin(), rest.end(), [&](RowJob* job) { return key(*job) == wanted; });
    body(wanted, std::span<RowJob* const>(rest.begin(), middle));
    rest.erase(rest.begin(), middle);
  }
}

}  // namespace

HookRows RowSampling::gather(std::span<RowJob* const> group) {
  HookRows rows;
  rows.vocab_size = group.front()->vocab_size;
  hook_logits_.resize(group.size() * rows.vocab_size);
  for (std::size_t i = 0; i < group.size(); ++i) {
    std::ranges::copy(group[i]->logits.first(rows.vocab_size),
                      hook_logits_.begin() + static_cast<std::ptrdiff_t>(i * rows.vocab_size));
    rows.tokens.push_back(group[i]->tokens);
  }
  rows.logits = hook_logits_;
  return rows;
}

void RowSampling::scatter(std::span<RowJob* const> group, const HookRows& rows) const {
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::span<const float> row = rows.logits.subspan(i * rows.vocab_size, rows.vocab_size);
    std::ranges::copy(row, group[i]->logits.begin());
    if (std::ranges::any_of(row, [](float x) { return std::isnan(x) || x == INFINITY; })) {
      group[i]->error = Error(ErrorCode::kInvalidArgument,
                              "a logits processor wrote NaN or +inf into a row; allowed: finite numbers and -inf");
    }
  }
}

void RowSampling::run_logits_hooks(std::span<RowJob*> jobs) {
  if (std::ranges::none_of(jobs, [](const RowJob* job) { return !job->request->logits_hooks.empty(); })) return;
  for (std::size_t position = 0;; ++position) {
    std::vector<RowJob*> active;
    for (RowJob* job : jobs) {
      if (!job->error && job->request->logits_hooks.size() > position) active.push_back(job);
    }
    if (active.empty()) return;
    for_each_group(
        active, [&](const RowJob& job) { return job.request->logits_hooks[position].get(); },
        [&](LogitsHook* hook, std::span<RowJob* const> group) {
          HookRows rows = gather(group);
          try {
            hook->process(rows);
            scatter(group, rows);
          } catch (const Error& error) {
            fail_group(group, error);
          } catch (const std::exception& error) {
            fail_group(group, Error(ErrorCode::kInternal, std::string("a logits processor failed: ") + error.what()));
          }
        });
  }
}

void RowSampling::run_sampler_hooks(std::span<RowJob*> jobs) {
  for_each_group(
      jobs, [](const RowJob& job) { return job.request->sampler_hook.get(); },
      [&](SamplerHook* hook, std::span<RowJob* const> group) {
        HookRows rows = gather(group);
        try {
          const std::vector<TokenId> ids = hook->sample(rows);
          if (ids.size() != group.size()) {
            throw Error(ErrorCode::kInvalidArgument, "sampler returned " + std::to_string(ids.size()) + " ids for " +
                                                         std::to_string(group.size()) + " rows");
          }
          for (std::size_t i = 0; i < group.size(); ++i) {
            if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= rows.vocab_size) {
              group[i]->error =
                  Error(ErrorCode::kInvalidArgument, "sampler returned id " + std::to_string(ids[i]) +
                                                         "; allowed: 0.." + std::to_string(rows.vocab_size - 1));
              continue;
            }
            group[i]->sampler->commit(ids[i], group[i]->logits);
            group[i]->token = ids[i];
          }
        } catch (const Error& error) {
          fail_group(group, error);
        } catch (const std::exception& error) {
          fail_group(group, Error(ErrorCode::kInternal, std::string("a sampler failed: ") + error.what()));
        }
      });
}

/// The best tokens of a row of log-probabilities. A row without any gives none: that beam ends.
void RowSampling::fill_beam(RowJob& job) {
  const std::span<const float> row = job.logits.first(job.vocab_size);
  job.beam->candidates.clear();
  job.beam->top.clear();
  if (sampling::scan_row(row).max == -std::numeric_limits<float>::infinity()) return;
  const sampling::RowLogprobs ranking(row, static_cast<int>(std::min(job.num_candidates, row.size())));
  for (const TopLogprob& each : ranking.score(0, row[0]).top) {
    const float logprob = row[static_cast<std::size_t>(each.token)];
    if (logprob == -std::numeric_limits<float>::infinity()) break;
    job.beam->candidates.push_back({.token = each.token, .logprob = logprob});
  }
}

void RowSampling::score_beam(const Scored& scored) const {
  BeamRow& beam = *scored.job->beam;
  for (BeamCandidate& candidate : beam.candidates) {
    const TokenLogprob score = scored.row.score(candidate.token, scored.raw[static_cast<std::size_t>(candidate.token)]);
    candidate.raw_logprob = score.logprob;
    beam.top = score.top;
  }
}

void RowSampling::sample_rows(std::span<RowJob> jobs) {
  scored_.clear();
  chained_.clear();
  hooked_.clear();
  for (RowJob& job : jobs) {
    if (job.error) continue;
    const std::span<float> row = job.logits.first(job.vocab_size);
    sampling::RowScan scan = sampling::scan_row(row);
    job.error = check_logits(job, scan);
    if (job.error) continue;
    if (job.request->params.logprobs) {
      scored_.push_back({&job, sampling::RowLogprobs(row, job.request->params.top_logprobs), {}});
      if (job.beam || changes_row(job) || !job.bitmask.empty()) scored_.back().raw.assign(row.begin(), row.end());
    }
    if (!job.bitmask.empty()) {
      apply_bitmask(row, job.bitmask);
      scan = sampling::scan_row(row);
      if (scan.max == -std::numeric_limits<float>::infinity()) {
        job.error = Error(ErrorCode::kInvalidArgument,
                          "the grammar allows no token to which the model gives any probability; the grammar and this "
                          "model's vocabulary do not go together");
        continue;
      }
    }
    if (job.beam) log_softmax(row, scan);
    if (is_plain_greedy(job)) {
      job.token = scan.argmax;
    } else {
      guarded(job, [&] { job.sampler->process(job.logits, context_of(job)); });
      chained_.push_back(&job);
    }
  }
  run_logits_hooks(chained_);
  for (RowJob* job : chained_) {
    if (job->error) continue;
    // A hook may have given probability to what the grammar forbids.
    if (!job->bitmask.empty() && !job->request->logits_hooks.empty()) {
      apply_bitmask(job->logits.first(job->vocab_size), job->bitmask);
    }
    if (job->beam) {
      guarded(*job, [&] { fill_beam(*job); });
    } else if (job->request->sampler_hook) {
      guarded(*job, [&] { job->sampler->filter(job->logits, context_of(*job)); });
      if (!job->error) hooked_.push_back(job);
    } else {
      guarded(*job, [&] { job->token = job->sampler->sample(job->logits, context_of(*job)); });
    }
  }
  run_sampler_hooks(hooked_);
  for (RowJob& job : jobs) {
    if (job.error || !job.token || job.grammar == nullptr) continue;
    guarded(job, [&] { job.token = job.grammar->settle(*job.token, job.room); });
  }
  for (const Scored& entry : scored_) {
    if (entry.job->error) continue;
    if (entry.job->beam) {
      score_beam(entry);
      continue;
    }
    if (!entry.job->token) continue;
    const TokenId token = *entry.job->token;
    const std::span<const float> raw = entry.raw.empty() ? entry.job->logits : std::span<const float>(entry.raw);
    entry.job->logprob = entry.row.score(token, raw[static_cast<std::size_t>(token)]);
  }
}

}  // namespace genai::engine
