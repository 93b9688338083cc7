#if defined(__aarch64__)

#include "genai/kernels/dot_neon.h"
#include "genai/kernels/matmul_impl.h"

namespace genai::kernels {

const MatMulKernels kMatMulNeon = MatMul<DotNeon<false>>::kTable;

}  // namespace genai::kernels

#endif  // __aarch64__
