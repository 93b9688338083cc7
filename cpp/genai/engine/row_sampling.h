#pragma once

#include "genai/base/error.h"
#include "genai/base/ids.h"
#include "genai/core/hooks.h"
#include "genai/core/request.h"
#include "genai/sampling/sequence_sampler.h"

#include <cstddef>
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

  // Outcome: exactly one of the two is set.
  std::optional<TokenId> token;
  std::optional<Error> error;
  std::optional<TokenLogprob> logprob;  ///< when the request asks for it and there is a token
};

/// Samples all rows of a step. User hooks are called once for all rows that share one. A row whose logits are unusable
/// (NaN, +inf, all equal, all forbidden) or whose hook throws gets an error; the others are not touched by that.
/// Holds scratch buffers that grow to rows x vocab only while hooks are used. One thread.
class RowSampling {
 public:
  void sample_rows(std::span<RowJob> jobs);

 private:
  void run_logits_hooks(std::span<RowJob*> jobs);
  void run_sampler_hooks(std::span<RowJob*> jobs);
  HookRows gather(std::span<RowJob* const> group);
  void scatter(std::span<RowJob* const> group, const HookRows& rows) const;

  std::vector<float> hook_logits_;
};

}  // namespace genai::engine
