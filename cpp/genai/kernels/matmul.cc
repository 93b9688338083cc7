#include "genai/kernels/matmul.h"

#include "genai/base/error.h"

namespace genai::kernels {

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
