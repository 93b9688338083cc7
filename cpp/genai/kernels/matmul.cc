#include "genai/kernels/matmul.h"

#include "genai/base/error.h"

#include <algorithm>

namespace genai::kernels {

std::int64_t Bf16Rows::slab_depth(const PanelView& shape) {
  constexpr std::int64_t kMost = 320;
  const std::int64_t unit = shape.unit_depth;
  const std::int64_t slabs = (shape.depth + kMost - 1) / kMost;
  const std::int64_t even = ((shape.depth + slabs - 1) / slabs + unit - 1) / unit * unit;
  return even <= kMost ? even : std::max<std::int64_t>(kMost / unit, 1) * unit;
}

const MatMulKernels& matmul_kernels(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return kMatMulPlain;
    case Isa::kNeon:
    case Isa::kNeonDot:
#if defined(__aarch64__)
      return isa == Isa::kNeon ? kMatMulNeon : kMatMulNeonDot;
#else
      break;
#endif
#if defined(__x86_64__)
    case Isa::kAvx2:
    case Isa::kAvx512:  // without products of int8
      return kMatMulAvx2;
    case Isa::kAvxVnni:
      return kMatMulAvxVnni;
    case Isa::kAvx512Vnni:
      return kMatMulAvx512Vnni;
    case Isa::kAmx:
      return kMatMulAmx;
#else
    case Isa::kAvx2:
    case Isa::kAvx512:
    case Isa::kAvxVnni:
    case Isa::kAvx512Vnni:
    case Isa::kAmx:
      break;
#endif
  }
  check(false, "matrix kernels of an instruction set that this build lacks");
  return kMatMulPlain;
}

}  // namespace genai::kernels
