#include "genai/sampling/candidates.h"

#include "genai/sampling/kernels.h"

#include <algorithm>
#include <array>

namespace genai::sampling {

namespace {

/// In float64, as eight interleaved sums, because one would wait for each addition.
double sum_of(std::span<const float> values) {
  std::array<double, 8> sums{};
  const std::size_t whole = values.size() / 8 * 8;
  for (std::size_t i = 0; i < whole; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += static_cast<double>(values[i + lane]);
  }
  for (std::size_t i = whole; i < values.size(); ++i) sums[i - whole] += static_cast<double>(values[i]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

void scale_logits(Candidates& candidates, float shift, float scale) {
  for (float& logit : candidates.logits) logit = (logit - shift) * scale;
  candidates.weights.resize(candidates.size());
  kernels(best_isa()).exp_values(candidates.logits.data(), candidates.size(), 0.0F, 1.0F, candidates.weights.data());
}

double total_weight(const Candidates& candidates) {
  return sum_of(candidates.weights) + candidates.tail_weight;
}

std::size_t most_likely(const Candidates& candidates) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    if (candidates.logits[i] > candidates.logits[best]) best = i;
  }
  return best;
}

std::size_t draw(const Candidates& candidates, double u) {
  // First the chunk, then the token in it.
  constexpr std::size_t kChunk = 256;
  const std::span<const float> weights = candidates.weights;
  const double target = u * total_weight(candidates);
  double sum = 0.0;
  std::size_t drawn = most_likely(candidates);  // where rounding leaves nothing else
  for (std::size_t start = 0; start < weights.size(); start += kChunk) {
    const std::size_t end = std::min(start + kChunk, weights.size());
    const double chunk_sum = sum_of(weights.subspan(start, end - start));
    const bool is_last = end == weights.size();
    if (sum + chunk_sum <= target && !is_last) {
      sum += chunk_sum;
      continue;
    }
    for (std::size_t i = start; i < end; ++i) {
      if (weights[i] <= 0.0F) continue;
      sum += static_cast<double>(weights[i]);
      drawn = i;
      if (sum > target) break;
    }
    break;
  }
  return drawn;
}

}  // namespace genai::sampling
