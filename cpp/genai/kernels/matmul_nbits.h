#pragma once

#include "genai/ort/custom_op.h"

#include <vector>

namespace genai::kernels {

/// The operator MatMulNBits of the domain genai.runtime, for float32 and float16: products of activations with one to
/// three quantized matrices. docs/design/kernels.md has its inputs, outputs and attributes.
std::vector<ort::OpDefinition> matmul_nbits_definitions();

}  // namespace genai::kernels
