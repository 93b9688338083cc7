#include "genai/kernels/attention.h"

#include "genai/base/error.h"

namespace genai::kernels {

std::size_t scratch_floats(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.head_dim + shape.value_dim + shape.rotary_dim + 16);
}

std::size_t packed_floats(const AttentionShape& shape) {
  return static_cast<std::size_t>(kTileRows) * static_cast<std::size_t>(shape.head_dim);
}

#if defined(__x86_64__)
namespace {

/// Put together here, as the files of an instruction set must run no code before it is chosen.
AttentionKernels with_prompts(const PromptKernels& prompts) {
  AttentionKernels kernels = kAttentionAvx512;
  kernels.pack_queries = prompts.pack_queries;
  kernels.attend = prompts.attend;
  return kernels;
}

}  // namespace
#endif

const AttentionKernels* prompt_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  static const AttentionKernels bf16 = with_prompts(kPromptsAvx512Bf16);
  static const AttentionKernels amx = with_prompts(kPromptsAmx);
  if (isa == Isa::kAvx512Bf16) return &bf16;
  if (isa == Isa::kAmx) return &amx;
#endif
  return nullptr;
}

bool fits_prompt_kernels(const AttentionShape& shape) {
  constexpr int kStep = 16;
  constexpr int kMost = 512;
  return shape.head_dim % kStep == 0 && shape.value_dim % kStep == 0 && shape.head_dim <= kMost &&
         shape.value_dim <= kMost;
}

std::size_t prompt_packed_floats(const AttentionShape& shape) {
  return static_cast<std::size_t>(kPromptTileRows * shape.tiled_head_dim() / 2);
}

std::size_t prompt_score_floats(const AttentionShape& shape) {
  const int keys_and_values = kRangeKeys * (shape.tiled_head_dim() + shape.value_dim) / 2;
  constexpr int kStrip = 2 * kPromptRowStep * kScoreStride;
  constexpr int kScales = 2 * kRangeKeys;
  return static_cast<std::size_t>(keys_and_values + kStrip + kScales);
}

const AttentionKernels& attention_kernels(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return kAttentionPlain;
    case Isa::kNeon:
    case Isa::kNeonDot:
    case Isa::kNeonI8mm:
#if defined(__aarch64__)
      return kAttentionNeon;
#else
      break;
#endif
#if defined(__x86_64__)
    case Isa::kAvx2:
    case Isa::kAvxVnni:
      return kAttentionAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
    case Isa::kAmx:
      return kAttentionAvx512;
    case Isa::kAvx512Bf16:  // AMD's; those of Intel have tiles
      return kAttentionAvx512Far;
#else
    case Isa::kAvx2:
    case Isa::kAvxVnni:
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      break;
#endif
  }
  check(false, "attention kernels of an instruction set that this build lacks");
  return kAttentionPlain;
}

}  // namespace genai::kernels
