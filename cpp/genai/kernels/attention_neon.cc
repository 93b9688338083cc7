#if defined(__aarch64__)

#include "genai/kernels/attention_impl.h"
#include "genai/kernels/vec_neon.h"

namespace genai::kernels {

const AttentionKernels kAttentionNeon = Attention<VecNeon>::kTable;

}  // namespace genai::kernels

#endif  // __aarch64__
