#pragma once

#include "genai/base/ids.h"

#include <cstddef>
#include <span>
#include <string_view>

namespace genai::sampling {

/// What one scan over a row of logits tells. Cost: one pass, SIMD.
struct RowScan {
  TokenId argmax = 0;  ///< lowest id among the largest values; NaN never wins; 0 when there is no number
  float max = 0.0F;    ///< -inf when there is no number
  float min = 0.0F;    ///< over the values that are not -inf; +inf when there are none
  bool has_nan = false;
  bool has_pos_inf = false;
};
RowScan scan_row(std::span<const float> logits);

/// Values that one entry of a block array stands for.
inline constexpr std::size_t kBlockSize = 64;
constexpr std::size_t num_blocks(std::size_t size) {
  return (size + kBlockSize - 1) / kBlockSize;
}

/// Instruction sets that the kernels are written for. Results are the same to the last bit on all of them: 16 partial
/// sums a block in a fixed order, no fused multiply-add. So a seed gives the same tokens on every CPU that computes
/// the same logits.
enum class Isa { kPlain, kAvx2, kAvx512 };
bool is_supported(Isa isa);
/// The widest one of this CPU within `limit`, a value of the environment variable ONNX_GENAI_CPU_ISA (see
/// genai/kernels/isa.h); an empty or unknown one limits nothing.
Isa best_isa_within(std::string_view limit);
/// best_isa_within() what the environment had at the first call.
Isa best_isa();

/// The kernels of one instruction set. Pointers may be unaligned. Requires: is_supported(isa).
struct Kernels {
  /// Fills all of RowScan but argmax, and the largest number of each block (-inf where there is none).
  /// block_max: float32 [num_blocks(size)].
  RowScan (*scan)(const float* values, std::size_t size, float* block_max);

  /// sums[b] = sum of exp_of((value - shift) * scale) over block b. sums: float32 [num_blocks(size)].
  void (*sum_exp_blocks)(const float* values, std::size_t size, float shift, float scale, float* sums);

  /// out[i] = exp_of((values[i] - shift) * scale). `out` may be `values`.
  void (*exp_values)(const float* values, std::size_t size, float shift, float scale, float* out);
};
const Kernels& kernels(Isa isa);

/// The kernels' exponential: exp(x) within 2 units in the last place for x in [-87, 88], 0 for x < -87 and for NaN.
float exp_of(float x);

/// Sum of block sums in float64, in order.
double sum_of_blocks(std::span<const float> sums);

}  // namespace genai::sampling
