#include "genai/kernels/attention.h"

#include "genai/base/error.h"

namespace genai::kernels {

std::size_t scratch_floats(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.head_dim + shape.value_dim + shape.rotary_dim + 16);
}

std::size_t packed_floats(const AttentionShape& shape) {
  return static_cast<std::size_t>(kTileRows) * static_cast<std::size_t>(shape.head_dim);
}

const AttentionKernels& attention_kernels(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return kAttentionPlain;
    case Isa::kNeon:
    case Isa::kNeonDot:
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
#else
    case Isa::kAvx2:
    case Isa::kAvxVnni:
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
    case Isa::kAmx:
      break;
#endif
  }
  check(false, "attention kernels of an instruction set that this build lacks");
  return kAttentionPlain;
}

}  // namespace genai::kernels
