#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace genai::embed {

/// What one run may hold.
struct BatchLimits {
  std::int64_t max_tokens = 0;  ///< rows times the longest row, padding included; a longer text runs alone
  std::int64_t max_rows = 0;    ///< 0 = any number
  bool equal_lengths = false;   ///< rows of one run have one length
};

/// Texts that run together.
struct Batch {
  std::vector<std::size_t> texts;  ///< indices, longest first
  std::size_t longest = 0;         ///< tokens
};

/// Groups texts by length, so that little is padded: each text is in one batch, and batches come from the longest to
/// the shortest. lengths: tokens of each text, >= 1. Cost: O(n log n).
std::vector<Batch> plan_batches(std::span<const std::size_t> lengths, const BatchLimits& limits);

}  // namespace genai::embed
