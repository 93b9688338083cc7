#pragma once

#include "genai/base/ids.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace genai::sampling {

/// Two probabilities (or sums of them) that differ by less than this factor's distance from 1 are taken as equal where
/// a filter asks "at least": float32 cannot tell 0.3 from 0.1 + 0.1 + 0.1.
inline constexpr double kProbabilitySlack = 0x1p-22;

/// The tokens of one row that may still be drawn: parallel arrays in ascending id order, and buffers. Filters remove
/// entries and keep the order; each requires and leaves at least one. Buffers grow to what a row needs, at most to the
/// vocabulary.
struct Candidates {
  std::vector<TokenId> ids;
  std::vector<float> logits;   ///< after temperature, shifted so that the row's largest is 0
  std::vector<float> weights;  ///< exp_of(logits[i]): probabilities before they are divided by their sum
  /// Sum of weights of tokens that are not listed although no filter removed them yet, because the next one will.
  double tail_weight = 0.0;

  std::vector<std::uint64_t> keys;  ///< scratch of the filters

  std::size_t size() const { return ids.size(); }
};

/// Replaces logits by (logit - shift) * scale and computes the weights. Requires: shift is the row's largest logit.
void scale_logits(Candidates& candidates, float shift, float scale);

/// Sum of all weights, unlisted ones included, in float64.
double total_weight(const Candidates& candidates);

/// Removes the candidates for whose index `keep` is false, and the tail.
template <typename Predicate>
void keep_if(Candidates& candidates, const Predicate& keep) {
  std::size_t kept = 0;
  while (kept < candidates.size() && keep(kept)) ++kept;
  for (std::size_t i = kept; i < candidates.size(); ++i) {
    const bool keeps = keep(i);  // no branch: in a flat row nobody could predict it
    candidates.ids[kept] = candidates.ids[i];
    candidates.logits[kept] = candidates.logits[i];
    candidates.weights[kept] = candidates.weights[i];
    kept += keeps ? 1 : 0;
  }
  candidates.ids.resize(kept);
  candidates.logits.resize(kept);
  candidates.weights.resize(kept);
  candidates.tail_weight = 0.0;
}

/// Integers in the order of floats. Requires: not NaN. -0 and +0 are the same.
constexpr std::uint32_t ordered_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// Sorts ascending from most to least likely; of equal logits the lower id first. No two tokens have the same key.
constexpr std::uint64_t rank_key(float logit, TokenId token) {
  return (static_cast<std::uint64_t>(~ordered_bits(logit)) << 32U) | static_cast<std::uint32_t>(token);
}

/// The logit that a rank key was made of.
constexpr float logit_of_key(std::uint64_t key) {
  const auto ordered = ~static_cast<std::uint32_t>(key >> 32U);
  return std::bit_cast<float>((ordered & 0x80000000U) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}

/// Index of the most likely candidate (ties: lowest id). Requires: there is one.
std::size_t most_likely(const Candidates& candidates);

/// Draws one: the first in id order at which the sum of weights exceeds u * (sum of all). u: in [0, 1).
/// Requires: there is one, and no tail. Returns its index.
std::size_t draw(const Candidates& candidates, double u);

}  // namespace genai::sampling
