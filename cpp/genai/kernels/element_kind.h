#pragma once

#include <cstdint>

namespace genai::kernels {

/// How numbers of a graph's tensors or of KV are stored.
enum class ElementKind : std::uint8_t { kFloat32, kFloat16, kBFloat16, kInt8 };

}  // namespace genai::kernels
