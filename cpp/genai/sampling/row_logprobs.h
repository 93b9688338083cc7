#pragma once

#include "genai/base/ids.h"
#include "genai/core/request.h"

#include <span>
#include <vector>

namespace genai::sampling {

/// Log-probabilities of a row of raw logits. Keeps what is needed to score any id of the row later, without a copy of
/// it. Cost: O(vocab) once, SIMD, sums in float64; the top list adds O(vocab / 64) on typical rows.
class RowLogprobs {
 public:
  /// raw_logits: float32 [vocab], as the model made them. top_n: at most this many most likely tokens, ties by lower
  /// id.
  RowLogprobs(std::span<const float> raw_logits, int top_n);

  /// Requires: `raw_logit` is the raw logit of `token` in the same row. -inf gives -inf.
  TokenLogprob score(TokenId token, float raw_logit) const;

 private:
  double log_sum_exp_ = 0.0;
  std::vector<TopLogprob> top_;
};

}  // namespace genai::sampling
