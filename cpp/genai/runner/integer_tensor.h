#pragma once

#include "genai/base/dims.h"
#include "genai/base/dtype.h"
#include "genai/ort/value.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace genai::runner {

/// A small input tensor of whole numbers, kept between steps. One thread.
class IntegerTensor {
 public:
  explicit IntegerTensor(DType dtype) : dtype_(dtype) {}

  /// Gives it new dims; true when its memory or dims changed, so that value() must be bound again. The elements are
  /// then not defined. Allocates only to grow.
  bool reshape(const Dims& dims);

  /// Sets an element, in row-major order.
  void set(std::size_t index, std::int64_t element);

  /// A view that is valid until the next reshape() that returns true.
  ort::Value value(const ort::Library& library);

  /// The elements, for a tensor whose dtype is that of T. A loan until the next reshape().
  template <typename T>
  std::span<T> elements() {
    return {reinterpret_cast<T*>(memory_.data()), size()};
  }

  std::size_t size() const { return static_cast<std::size_t>(dims_.num_elements()); }

 private:
  DType dtype_;
  bool shaped_ = false;
  Dims dims_;
  std::vector<std::byte> memory_;
};

}  // namespace genai::runner
