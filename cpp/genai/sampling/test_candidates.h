#pragma once

#include "genai/sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

namespace genai::sampling::test {

inline constexpr float kForbidden = -std::numeric_limits<float>::infinity();

/// All tokens of a row that are not -inf.
inline Candidates candidates_of_logits(std::span<const float> row) {
  Candidates candidates;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] == kForbidden) continue;
    candidates.ids.push_back(static_cast<TokenId>(i));
    candidates.logits.push_back(row[i]);
  }
  if (candidates.size() > 0) scale_logits(candidates, *std::ranges::max_element(candidates.logits), 1.0F);
  return candidates;
}

/// Tokens 0, 1, ... with these probabilities, up to a factor; 0 leaves a token out.
inline Candidates candidates_of(std::initializer_list<double> probabilities) {
  std::vector<float> row;
  for (const double p : probabilities) row.push_back(p > 0.0 ? static_cast<float>(std::log(p)) : kForbidden);
  return candidates_of_logits(row);
}

using Ids = std::vector<TokenId>;

}  // namespace genai::sampling::test
