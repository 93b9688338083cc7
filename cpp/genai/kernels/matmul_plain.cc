#include "genai/kernels/dot_plain.h"
#include "genai/kernels/matmul_impl.h"

namespace genai::kernels {

const MatMulKernels kMatMulPlain = MatMul<DotPlain>::kTable;

}  // namespace genai::kernels
