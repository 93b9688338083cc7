#pragma once

// How rows of a product's activations become float32. Included by matmul_impl.h, and compiled with it for each
// instruction set.

#include "genai/kernels/matmul.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace genai::kernels {
namespace {

/// Over vectors of 16 floats.
template <typename V>
struct Rows {
  static void load(ElementKind kind, const void* src, std::int64_t count, std::int64_t padded, float* dst) {
    if (kind == ElementKind::kFloat16) {
      load_elements(static_cast<const Half*>(src), count, dst);
    } else {
      std::memcpy(dst, src, static_cast<std::size_t>(count) * sizeof(float));
    }
    std::fill(dst + count, dst + padded, 0.0F);
  }

  static void load_elements(const Half* src, std::int64_t count, float* dst) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) V::load(src + i).store(dst + i);
    for (; i < count; ++i) dst[i] = to_float(src[i]);
  }

  template <typename T>
  static void add_skip(const RowNorm& norm, float* row) {
    const T* const skip = static_cast<const T*>(norm.skip);
    T* const sum = static_cast<T*>(norm.sum);
    std::int64_t i = 0;
    for (; i + kLanes <= norm.count; i += kLanes) {
      const V x = V::load(row + i) + V::load(skip + i);
      x.store(row + i);
      x.store(sum + i);
    }
    for (; i < norm.count; ++i) {
      row[i] += to_float(skip[i]);
      from_float(row[i], sum + i);
    }
  }

  static void normalise(const RowNorm& norm, std::int64_t padded, float* dst) {
    load(norm.kind, norm.source, norm.count, padded, dst);
    if (norm.skip != nullptr) {
      norm.kind == ElementKind::kFloat16 ? add_skip<Half>(norm, dst) : add_skip<float>(norm, dst);
    }
    V even = V::zero();
    V odd = V::zero();
    for (std::int64_t i = 0; i < padded; i += 2 * kLanes) {
      const V first = V::load(dst + i);
      const V second = V::load(dst + i + kLanes);
      even = V::fma(first, first, even);
      odd = V::fma(second, second, odd);
    }
    const float mean = (even + odd).sum() / static_cast<float>(norm.count);
    const float factor = 1.0F / std::sqrt(mean + norm.epsilon);
    const V factors = V::set1(factor);
    std::int64_t i = 0;
    for (; i + kLanes <= norm.count; i += kLanes) {
      (V::load(dst + i) * factors * V::load(norm.weight + i)).store(dst + i);
    }
    for (; i < norm.count; ++i) dst[i] = dst[i] * factor * norm.weight[i];
  }
};

}  // namespace
}  // namespace genai::kernels
