#pragma once

#include "genai/ort/custom_op.h"

#include <memory>
#include <vector>

namespace genai::kernels {

class PackedStore;

/// The operator MatMulNBits of the domain genai.runtime, for float32 and float16: products of activations with one to
/// three quantized matrices. docs/design/kernels.md has its inputs, outputs and attributes. `store` gives the kernels
/// their packed weights; null: they are packed into memory.
std::vector<ort::OpDefinition> matmul_nbits_definitions(std::shared_ptr<PackedStore> store);

}  // namespace genai::kernels
