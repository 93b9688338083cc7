#pragma once

#include "genai/kernels/attention.h"
#include "genai/ort/custom_op.h"

#include <cstdint>
#include <span>
#include <vector>

namespace genai::kernels {

/// The inputs of PagedAttention in the order of docs/design/paged.md.
enum class PagedInput : std::uint8_t {
  kQuery,
  kKey,
  kValue,
  kKeyCache,
  kValueCache,
  kCumulativeLengths,
  kPastLengths,
  kBlockTable,
  kCos,
  kSin,
  kSlotMapping,
  kHeadSink,
  kQueryNorm,
  kKeyNorm,
  kKeyScale,
  kValueScale,
  kMetadata,
  kPromptRows,
};
inline constexpr std::size_t kNumPagedInputs = 18;

/// Attributes of a node, checked.
struct PagedAttributes {
  int num_heads = 0;
  int kv_heads = 0;
  int window = 0;      ///< 0 = off
  float scale = 0.0F;  ///< 0 = 1 / sqrt(head_dim)
  float softcap = 0.0F;
  float norm_epsilon = 1e-6F;
  bool do_rotary = false;
  bool interleaved = false;
  bool causal = true;
  bool smooth_softmax = false;

  /// Throws kInvalidArgument.
  static PagedAttributes read(const ort::KernelInfo& info);
};

/// One call's inputs, checked: shapes fit together, and every index that the kernels follow lies inside its tensor.
struct PagedCall {
  AttentionShape shape;
  AttentionTensors tensors;
  Dims output_dims;
  std::int64_t num_tokens = 0;
  std::int64_t num_blocks = 0;
  std::int64_t max_blocks = 0;                 ///< columns of the block table
  std::span<const std::int32_t> cumulative;    ///< [sequences + 1]
  std::span<const std::int32_t> past;          ///< [sequences]
  const std::int32_t* block_table = nullptr;   ///< [sequences, max_blocks]
  const std::int32_t* slot_mapping = nullptr;  ///< [tokens] or nullptr
  const std::int32_t* prompt_rows = nullptr;   ///< [tokens] or nullptr: not 0 = may be computed in bfloat16

  /// Throws kInvalidArgument. Cost: O(tokens + blocks of the running sequences).
  static PagedCall read(const PagedAttributes& attributes, ElementKind io, ElementKind kv,
                        const ort::KernelContext& context);
};

}  // namespace genai::kernels
