#pragma once

#include "genai/kv/kv_manager.h"
#include "genai/runner/model_runner.h"

#include <cstdint>

namespace genai::engine {

/// Measures what moving and recomputing a block costs. Until something was measured it guesses: moves at 4 GB/s, or at
/// 0.5 GB/s when the only lower tier is a file, and recomputing dearer than any move. One thread.
class SwapCostMeter {
 public:
  SwapCostMeter(const runner::RunnerInfo& info, std::int64_t block_bytes);

  /// A step ran: `num_prefill_tokens` of its `num_tokens` did not decode. Steps that mostly decode say nothing about
  /// the cost of prefill.
  void ran(std::int64_t num_prefill_tokens, std::int64_t num_tokens, double seconds);

  /// Costs by what is known now.
  kv::SwapCosts costs(const runner::RunnerStats& stats) const;

 private:
  int block_size_;
  double guessed_move_seconds_;
  double weighted_tokens_ = 0.0;  ///< both decay with each measured step, so that old figures fade
  double weighted_seconds_ = 0.0;
};

}  // namespace genai::engine
