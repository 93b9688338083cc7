#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace genai {

/// Element types that cross our interfaces.
enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kInt64, kInt32, kInt8, kUInt8, kBool };

/// Size of one element in bytes.
constexpr std::size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

/// Name as NumPy spells it ("float32", "bfloat16", ...).
constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt64:
      return "int64";
    case DType::kInt32:
      return "int32";
    case DType::kInt8:
      return "int8";
    case DType::kUInt8:
      return "uint8";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

}  // namespace genai
