#pragma once

#include "genai/base/ids.h"
#include "genai/core/request.h"
#include "genai/core/sampling_params.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace genai::engine {

/// One possible next token of a beam.
struct BeamCandidate {
  TokenId token = 0;
  float logprob = 0.0F;      ///< log-softmax of the model's logits, then the processors; not normalised again
  float raw_logprob = 0.0F;  ///< before the processors; only set when log-probabilities are asked
};

/// What one beam's logits row gives.
struct BeamRow {
  std::vector<BeamCandidate> candidates;  ///< the row's best, best first, none forbidden
  std::vector<TopLogprob> top;            ///< the model's own most likely tokens, when asked
};

struct BeamConfig {
  std::size_t num_beams = 2;
  float length_penalty = 1.0F;
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;
  std::size_t num_end_ids = 0;      ///< ids that end a sequence
  std::int64_t max_new_tokens = 1;  ///< a hypothesis of this length is finished
  bool keeps_logprobs = false;
};

/// A generated sequence.
struct BeamPath {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> logprobs;  ///< with keeps_logprobs, one a token
  float score = 0.0F;                  ///< sum of log-probabilities; of finished ones divided by length^length_penalty
};

/// Beam search over one prompt: rows of log-probabilities in, the next beams out. Knows no scheduler, no text and no
/// model. One thread.
///
/// The rules are those of `_beam_search` in Hugging Face transformers 5 for a batch of one: each step ranks the
/// (1 + end ids, at least 2) * num_beams best continuations of all beams by the sum of log-probabilities (float32);
/// those of the first num_beams that end join the finished ones with score sum / generated_tokens^length_penalty, of
/// which the best num_beams are kept; the best num_beams that do not end run on. Ties: the beam of lower index, then
/// the lower token id. A forbidden continuation (-inf) is no continuation, so fewer than num_beams may run.
class BeamSearch {
 public:
  explicit BeamSearch(const BeamConfig& config);

  /// Candidates that a row has to give, if it has so many.
  std::size_t num_candidates() const;

  /// Beams that run, best first; at the start one that is empty. Empty when nothing can run on.
  const std::vector<BeamPath>& running() const { return running_; }

  /// A beam of the next step: beam `parent` of this one, longer by `token`.
  struct Next {
    std::size_t parent = 0;
    TokenId token = 0;
  };
  /// Whether beam `parent` ends with `token` (EOS, stop id, stop string).
  using Ends = std::function<bool(std::size_t parent, TokenId token)>;

  /// Takes one row for each running beam and returns the beams that run next, best first.
  /// Requires: not done(). Cost: O(num_beams * (num_candidates + generated tokens)).
  std::vector<Next> advance(std::span<const BeamRow> rows, const Ends& ends);

  /// Nothing that could still be found would be returned.
  bool done() const { return done_; }

  /// The best finished sequences, best first; fewer than `count` when the processors allow no more.
  std::vector<BeamPath> finished(std::size_t count) const;

  /// For a search that is given up: finished(), then running ones with their scores normalised.
  std::vector<BeamPath> so_far(std::size_t count) const;

 private:
  float normalised(float sum, std::size_t num_tokens) const;
  BeamPath extended(const BeamPath& path, const BeamCandidate& candidate, const BeamRow& row, float score) const;
  void finish(BeamPath path);
  bool cannot_improve() const;

  BeamConfig config_;
  std::vector<BeamPath> running_;
  std::vector<BeamPath> finished_;  ///< best first, at most num_beams
  bool done_ = false;
};

}  // namespace genai::engine
