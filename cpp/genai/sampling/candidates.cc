#include "genai/sampling/candidates.h"

#include "genai/sampling/kernels.h"

namespace genai::sampling {

void Candidates::clear() {
  ids.clear();
  logits.clear();
  weights.clear();
  tail_weight = 0.0;
}

void Candidates::push_back(TokenId token, float logit) {
  ids.push_back(token);
  logits.push_back(logit);
}

void scale_logits(Candidates& candidates, float shift, float scale) {
  for (float& logit : candidates.logits) logit = (logit - shift) * scale;
  candidates.weights.resize(candidates.size());
  kernels(best_isa()).exp_values(candidates.logits.data(), candidates.size(), 0.0F, 1.0F, candidates.weights.data());
}

double total_weight(const Candidates& candidates) {
  double total = candidates.tail_weight;
  for (const float weight : candidates.weights) total += static_cast<double>(weight);
  return total;
}

std::size_t most_likely(const Candidates& candidates) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    if (candidates.logits[i] > candidates.logits[best]) best = i;
  }
  return best;
}

std::size_t draw(const Candidates& candidates, double u) {
  const double target = u * total_weight(candidates);
  double sum = 0.0;
  std::size_t last = most_likely(candidates);  // if all weights are 0
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates.weights[i] <= 0.0F) continue;
    sum += static_cast<double>(candidates.weights[i]);
    last = i;
    if (sum > target) break;
  }
  return last;
}

}  // namespace genai::sampling
