#pragma once

#include "genai/base/error.h"
#include "genai/base/ids.h"
#include "genai/core/hooks.h"
#include "genai/core/request.h"
#include "genai/engine/beam_search.h"
#include "genai/engine/grammar_state.h"
#include "genai/sampling/sequence_sampler.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace genai::engine {

/// One row to sample. Pointers are loans that end with sample_rows().
struct RowJob {
  sampling::SequenceSampler* sampler = nullptr;
  const Request* request = nullptr;
  std::span<const TokenId> tokens;  ///< prompt and generated ids
  std::span<float> logits;          ///< float32 [row width]; changed in place
  std::size_t vocab_size = 0;       ///< ids that may be sampled, <= row width
  BeamRow* beam = nullptr;          ///< takes the best tokens of the row instead of one sampled token
  std::size_t num_candidates = 0;   ///< with `beam`: tokens that are wanted
  /// Tokens that a grammar allows, see core/constraint.h; empty = all.
  std::span<const std::uint32_t> bitmask = {};
  GrammarState* grammar = nullptr;  ///< what may replace the sampled token by one that ends the answer in time
  std::int64_t room = 0;            ///< with `grammar`: tokens that may follow the sampled one

  // Outcome: exactly one of the two is set; with `beam`, an error or nothing.
  std::optional<TokenId> token;
  std::optional<Error> error;           ///< set before: the row is not sampled
  std::optional<TokenLogprob> logprob;  ///< when the request asks for it and there is a token
};

/// Samples all rows of a step. User hooks are called once for all rows that share one. A row whose logits are unusable
/// (NaN, +inf, all equal, all forbidden) or whose hook throws gets an error; the others are not touched by that. Rows
/// of beams become log-probabilities before the processors and hooks run, as beam search adds those up. Holds scratch
/// buffers that grow to rows x vocab only while hooks are used. One thread.
class RowSampling {
 public:
  void sample_rows(std::span<RowJob> jobs);

 private:
  void run_logits_hooks(std::span<RowJob*> jobs);
  void run_sampler_hooks(std::span<RowJob*> jobs);
  void fill_beam(RowJob& job);
  HookRows gather(std::span<RowJob* const> group);
  void scatter(std::span<RowJob* const> group, const HookRows& rows) const;

  struct Scored {
    RowJob* job;
    sampling::RowLogprobs row;
    std::vector<float> raw;  ///< the row as it was, to score the chosen ids; empty when nothing changes the row
  };
  void score_beam(const Scored& scored) const;

  std::vector<float> hook_logits_;
  std::vector<Scored> scored_;    ///< of the step that runs
  std::vector<RowJob*> chained_;  ///< rows that are not plain greedy
  std::vector<RowJob*> hooked_;   ///< rows that a sampler hook samples
};

}  // namespace genai::engine
