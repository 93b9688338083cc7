#pragma once

#include "genai/base/dims.h"
#include "genai/base/dtype.h"
#include "genai/ort/library.h"

#include <cstddef>
#include <optional>

namespace ort_abi {
enum class ElementType : std::int32_t;
struct Value;
}  // namespace ort_abi

namespace genai::ort {

/// Our element type of ONNX Runtime's; nullopt for those that no interface of ours carries (string, double, ...).
std::optional<DType> from_element_type(ort_abi::ElementType type);
ort_abi::ElementType to_element_type(DType dtype);

/// An ONNX Runtime tensor: a view of the caller's memory or one that owns its memory. Move-only; may be empty.
/// One thread.
class Value {
 public:
  Value() = default;
  /// Takes over `handle`.
  Value(const Library& library, ort_abi::Value* handle) : ort_library_(&library), handle_(handle) {}
  Value(Value&& other) noexcept;
  Value& operator=(Value&& other) noexcept;
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value();

  /// A tensor on the caller's host memory, which must outlive the value. Requires: `data` holds the elements of `dims`.
  /// About 0.1 us.
  static Value view(const Library& library, DType dtype, const Dims& dims, void* data);

  /// A tensor that owns its host memory, not initialised. Throws kResourceExhausted when there is no memory.
  static Value allocate(const Library& library, DType dtype, const Dims& dims);

  bool empty() const { return handle_ == nullptr; }
  ort_abi::Value* handle() const { return handle_; }

  /// First element; host memory. Requires: not empty.
  std::byte* data() const;
  template <typename T>
  T* data_as() const {
    return reinterpret_cast<T*>(data());
  }

  /// Requires: not empty.
  Dims dims() const;

 private:
  void reset() noexcept;

  const Library* ort_library_ = nullptr;
  ort_abi::Value* handle_ = nullptr;
};

}  // namespace genai::ort
