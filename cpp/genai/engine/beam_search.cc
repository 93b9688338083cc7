#include "genai/engine/beam_search.h"

#include "genai/base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace genai::engine {
namespace {

struct Ranked {
  float score;
  std::size_t parent;
  const BeamCandidate* candidate;
};

/// The best `count` continuations of all beams, best first.
std::vector<Ranked> rank(std::span<const BeamPath> running, std::span<const BeamRow> rows, std::size_t count) {
  std::vector<Ranked> ranked;
  for (std::size_t parent = 0; parent < rows.size(); ++parent) {
    for (const BeamCandidate& candidate : rows[parent].candidates) {
      const float score = candidate.logprob + running[parent].score;
      if (score > -std::numeric_limits<float>::infinity()) ranked.push_back({score, parent, &candidate});
    }
  }
  const auto middle = ranked.begin() + static_cast<std::ptrdiff_t>(std::min(count, ranked.size()));
  std::partial_sort(ranked.begin(), middle, ranked.end(), [](const Ranked& a, const Ranked& b) {
    return std::tuple(-a.score, a.parent, a.candidate->token) < std::tuple(-b.score, b.parent, b.candidate->token);
  });
  ranked.erase(middle, ranked.end());
  return ranked;
}

}  // namespace

BeamSearch::BeamSearch(const BeamConfig& config) : config_(config), running_(1) {
  check(config.num_beams >= 1 && config.max_new_tokens >= 1, "a beam search without beams or tokens");
}

std::size_t BeamSearch::num_candidates() const {
  return std::max<std::size_t>(2, 1 + config_.num_end_ids) * config_.num_beams;
}

float BeamSearch::normalised(float sum, std::size_t num_tokens) const {
  const double penalty = std::pow(static_cast<double>(num_tokens), static_cast<double>(config_.length_penalty));
  return sum / static_cast<float>(penalty);
}

BeamPath BeamSearch::extended(const BeamPath& path, const BeamCandidate& candidate, const BeamRow& row,
                              float score) const {
  BeamPath longer;
  longer.tokens.reserve(path.tokens.size() + 1);
  longer.tokens = path.tokens;
  longer.tokens.push_back(candidate.token);
  if (config_.keeps_logprobs) {
    longer.logprobs = path.logprobs;
    longer.logprobs.push_back({.token = candidate.token, .logprob = candidate.raw_logprob, .top = row.top});
  }
  longer.score = score;
  return longer;
}

void BeamSearch::finish(BeamPath path) {
  const auto place = std::ranges::upper_bound(finished_, path.score, std::greater{}, &BeamPath::score);
  finished_.insert(place, std::move(path));
  if (finished_.size() > config_.num_beams) finished_.pop_back();
}

/// No running beam is expected to beat the worst of the finished ones.
bool BeamSearch::cannot_improve() const {
  if (finished_.size() < config_.num_beams) return false;
  if (config_.early_stopping == EarlyStopping::kFirst) return true;
  // A length penalty above 0 favours long sequences, so the best that a beam can still reach is at the greatest length.
  const bool at_full_length = config_.early_stopping == EarlyStopping::kNever && config_.length_penalty > 0.0F;
  const BeamPath& best = running_.front();
  const std::size_t length = at_full_length ? static_cast<std::size_t>(config_.max_new_tokens) : best.tokens.size();
  return !(normalised(best.score, length) > finished_.back().score);
}

std::vector<BeamSearch::Next> BeamSearch::advance(std::span<const BeamRow> rows, const Ends& ends) {
  check(!done_ && rows.size() == running_.size(), "beam search needs one row for each running beam");
  const std::size_t num_tokens = running_.front().tokens.size() + 1;
  const bool is_full_length = static_cast<std::int64_t>(num_tokens) >= config_.max_new_tokens;
  std::vector<Next> next;
  std::vector<BeamPath> next_paths;
  const std::vector<Ranked> ranked = rank(running_, rows, num_candidates());
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    const auto& [score, parent, candidate] = ranked[i];
    const auto path = [&](float path_score) {
      return extended(running_[parent], *candidate, rows[parent], path_score);
    };
    if (is_full_length || ends(parent, candidate->token)) {
      if (i < config_.num_beams) finish(path(normalised(score, num_tokens)));
    } else if (next.size() < config_.num_beams) {
      next.push_back({.parent = parent, .token = candidate->token});
      next_paths.push_back(path(score));
    }
  }
  running_ = std::move(next_paths);
  done_ = running_.empty() || cannot_improve();
  return next;
}

std::vector<BeamPath> BeamSearch::finished(std::size_t count) const {
  return {finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(std::min(count, finished_.size()))};
}

std::vector<BeamPath> BeamSearch::so_far(std::size_t count) const {
  std::vector<BeamPath> paths = finished(count);
  for (const BeamPath& path : running_) {
    if (paths.size() >= count) break;
    paths.push_back(path);
    if (!path.tokens.empty()) paths.back().score = normalised(path.score, path.tokens.size());
  }
  return paths;
}

}  // namespace genai::engine
