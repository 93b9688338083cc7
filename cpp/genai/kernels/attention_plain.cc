#include "genai/kernels/attention_impl.h"
#include "genai/kernels/vec_plain.h"

namespace genai::kernels {

const AttentionKernels kAttentionPlain = Attention<VecPlain>::kTable;

}  // namespace genai::kernels
