#include "genai/engine/swap_cost_meter.h"

namespace genai::engine {
namespace {

constexpr double kWarmBytesPerSecond = 4e9;
constexpr double kColdBytesPerSecond = 0.5e9;
constexpr double kDecay = 0.9;
constexpr std::int64_t kEnoughMoves = 16;

}  // namespace

SwapCostMeter::SwapCostMeter(const runner::RunnerInfo& info, std::int64_t block_bytes)
    : block_size_(info.block_size),
      guessed_move_seconds_(static_cast<double>(block_bytes) /
                            (info.num_warm_blocks > 0 ? kWarmBytesPerSecond : kColdBytesPerSecond)) {}

void SwapCostMeter::ran(std::int64_t num_prefill_tokens, std::int64_t num_tokens, double seconds) {
  if (num_prefill_tokens < block_size_ || 2 * num_prefill_tokens < num_tokens) return;
  weighted_tokens_ = kDecay * weighted_tokens_ + static_cast<double>(num_tokens);
  weighted_seconds_ = kDecay * weighted_seconds_ + seconds;
}

kv::SwapCosts SwapCostMeter::costs(const runner::RunnerStats& stats) const {
  kv::SwapCosts costs;
  const double one_way = stats.moved_blocks >= kEnoughMoves
                             ? stats.move_seconds / static_cast<double>(stats.moved_blocks)
                             : guessed_move_seconds_;
  costs.move_seconds = 2.0 * one_way;
  if (weighted_tokens_ > 0.0) costs.recompute_seconds = block_size_ * weighted_seconds_ / weighted_tokens_;
  return costs;
}

}  // namespace genai::engine
