#pragma once

#include "genai/ort/custom_op.h"

#include <vector>

namespace genai::kernels {

/// The operator PagedAttention, version 1, for each pair of element types; its contract is docs/design/paged.md. All
/// kernels made from one call share their working memory. Throws kInvalidArgument when ONNX_GENAI_CPU_ISA is wrong.
std::vector<ort::OpDefinition> paged_attention_definitions();

}  // namespace genai::kernels
