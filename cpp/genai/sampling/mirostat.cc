#include "genai/sampling/mirostat.h"

#include <cmath>
#include <numbers>

namespace genai::sampling {

Mirostat::Mirostat(float tau, float eta)
    : tau_(static_cast<double>(tau)), eta_(static_cast<double>(eta)), mu_(2.0 * static_cast<double>(tau)) {}

void Mirostat::apply(Candidates& candidates) const {
  // (ln W - logit) / ln 2 <= mu
  const double smallest = std::log(total_weight(candidates)) - (mu_ + kProbabilitySlack) * std::numbers::ln2;
  const std::size_t best = most_likely(candidates);
  const bool keeps_any = static_cast<double>(candidates.logits[best]) >= smallest;
  keep_if(candidates,
          [&](std::size_t i) { return keeps_any ? static_cast<double>(candidates.logits[i]) >= smallest : i == best; });
}

void Mirostat::observe(double surprise) {
  mu_ -= eta_ * (surprise - tau_);
}

}  // namespace genai::sampling
