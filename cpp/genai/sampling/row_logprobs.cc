#include "genai/sampling/row_logprobs.h"

#include "genai/sampling/candidates.h"
#include "genai/sampling/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace genai::sampling {
namespace {

constexpr std::size_t kChunkBlocks = 64;
constexpr std::size_t kChunk = kChunkBlocks * kBlockSize;

/// Calls body(start, values, block sums or maxima) for each chunk of the row, so that one small buffer is enough.
template <typename Body>
void for_each_chunk(std::span<const float> row, const Body& body) {
  std::array<float, kChunkBlocks> blocks;
  for (std::size_t start = 0; start < row.size(); start += kChunk) {
    const std::span<const float> values = row.subspan(start, std::min(kChunk, row.size() - start));
    body(start, values, std::span(blocks).first(num_blocks(values.size())));
  }
}

double sum_exp(std::span<const float> row, float shift) {
  double sum = 0.0;
  for_each_chunk(row, [&](std::size_t, std::span<const float> values, std::span<float> sums) {
    kernels(best_isa()).sum_exp_blocks(values.data(), values.size(), shift, 1.0F, sums.data());
    sum += sum_of_blocks(sums);
  });
  return sum;
}

/// Rank keys of the `count` most likely tokens, best first. Blocks that hold none are skipped.
std::vector<std::uint64_t> best_keys(std::span<const float> row, std::size_t count) {
  std::vector<std::uint64_t> best;
  best.reserve(count + 1);
  for_each_chunk(row, [&](std::size_t start, std::span<const float> values, std::span<float> maxima) {
    kernels(best_isa()).scan(values.data(), values.size(), maxima.data());
    for (std::size_t b = 0; b < maxima.size(); ++b) {
      const std::size_t first = b * kBlockSize;
      if (best.size() == count && rank_key(maxima[b], static_cast<TokenId>(start + first)) > best.back()) continue;
      for (std::size_t i = first; i < std::min(first + kBlockSize, values.size()); ++i) {
        if (std::isnan(values[i])) continue;
        const std::uint64_t key = rank_key(values[i], static_cast<TokenId>(start + i));
        if (best.size() == count && key > best.back()) continue;
        best.insert(std::ranges::upper_bound(best, key), key);
        if (best.size() > count) best.pop_back();
      }
    }
  });
  return best;
}

float log_probability(float raw_logit, double log_sum_exp) {
  if (raw_logit == -std::numeric_limits<float>::infinity()) return raw_logit;
  return static_cast<float>(std::min(0.0, static_cast<double>(raw_logit) - log_sum_exp));
}

}  // namespace

RowLogprobs::RowLogprobs(std::span<const float> raw_logits, int top_n) {
  const RowScan scan = scan_row(raw_logits);
  log_sum_exp_ = static_cast<double>(scan.max) + std::log(sum_exp(raw_logits, scan.max));
  if (top_n <= 0) return;
  for (const std::uint64_t key : best_keys(raw_logits, static_cast<std::size_t>(top_n))) {
    const auto token = static_cast<TokenId>(static_cast<std::uint32_t>(key));
    top_.push_back({token, log_probability(logit_of_key(key), log_sum_exp_)});
  }
}

TokenLogprob RowLogprobs::score(TokenId token, float raw_logit) const {
  return {.token = token, .logprob = log_probability(raw_logit, log_sum_exp_), .top = top_};
}

}  // namespace genai::sampling
