#include "genai/embed/pooling.h"

#include "genai/base/error.h"

#include <algorithm>
#include <cmath>

namespace genai::embed {
namespace {

/// out[i] = sum over t in [first, last) of weight(t) * tokens[t, i], divided by `divisor`.
template <typename Weight>
void weighted_sum(std::span<const float> tokens, std::size_t first, double divisor, std::span<float> out,
                  Weight weight) {
  const std::size_t width = out.size();
  const std::size_t num_tokens = tokens.size() / width;
  for (std::size_t i = 0; i < width; ++i) {
    double sum = 0.0;
    for (std::size_t t = first; t < num_tokens; ++t) sum += weight(t) * static_cast<double>(tokens[t * width + i]);
    out[i] = static_cast<float>(sum / divisor);
  }
}

}  // namespace

void pool(Pooling pooling, std::span<const float> tokens, std::size_t num_skipped, std::span<float> out) {
  const std::size_t width = out.size();
  check(width > 0 && !tokens.empty() && tokens.size() % width == 0, "pooling got no whole token");
  const std::size_t num_tokens = tokens.size() / width;
  const std::size_t first = num_skipped < num_tokens ? num_skipped : 0;
  const auto count = static_cast<double>(num_tokens - first);
  const auto one = [](std::size_t) { return 1.0; };
  switch (pooling) {
    case Pooling::kMean:
      return weighted_sum(tokens, first, count, out, one);
    case Pooling::kMeanSqrt:
      return weighted_sum(tokens, first, std::sqrt(count), out, one);
    case Pooling::kWeightedMean: {
      const auto position = [](std::size_t t) { return static_cast<double>(t + 1); };
      const auto last = static_cast<double>(num_tokens);
      const auto before = static_cast<double>(first);
      return weighted_sum(tokens, first, (last * (last + 1) - before * (before + 1)) / 2, out, position);
    }
    case Pooling::kCls:
      std::copy_n(tokens.begin(), width, out.begin());
      return;
    case Pooling::kLast:
      std::copy_n(tokens.end() - static_cast<std::ptrdiff_t>(width), width, out.begin());
      return;
    case Pooling::kMax:
      std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(first * width), width, out.begin());
      for (std::size_t t = first + 1; t < num_tokens; ++t) {
        // A NaN stays, so that it is found afterwards.
        for (std::size_t i = 0; i < width; ++i) {
          const float value = tokens[t * width + i];
          if (value > out[i] || std::isnan(value)) out[i] = value;
        }
      }
      return;
  }
}

}  // namespace genai::embed
