#pragma once

// Rows of queries, keys and values: how they are read, normalised, rotated, and written into the caches. Included by
// attention_impl.h, and compiled with it for each instruction set.

#include "genai/kernels/attention.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace genai::kernels {
namespace {

template <typename V>
struct AttentionRows {
  template <typename T>
  static V load_part(const T* p, int count) {
    T filled[16] = {};
    std::copy(p, p + count, filled);
    return V::load(filled);
  }

  template <typename T>
  static void load_row(const T* src, int count, float* dst) {
    int i = 0;
    for (; i + 16 <= count; i += 16) V::load(src + i).store(dst + i);
    for (; i < count; ++i) dst[i] = to_float(src[i]);
  }

  template <typename T>
  static void store_row(const float* src, int count, T* dst) {
    int i = 0;
    if constexpr (requires(V v) { v.store(dst); }) {
      for (; i + 16 <= count; i += 16) V::load(src + i).store(dst + i);
    }
    for (; i < count; ++i) from_float(src[i], dst + i);
  }

  /// row = row / rms(row) * weight.
  template <typename T>
  static void normalise(const T* weight, int count, float epsilon, float* row) {
    V squares = V::zero();
    int i = 0;
    for (; i + 16 <= count; i += 16) {
      const V x = V::load(row + i);
      squares = V::fma(x, x, squares);
    }
    if (i < count) {
      const V x = load_part(row + i, count - i);
      squares = V::fma(x, x, squares);
    }
    const float factor = 1.0F / std::sqrt(squares.sum() / static_cast<float>(count) + epsilon);
    for (int j = 0; j < count; ++j) row[j] = row[j] * factor * to_float(weight[j]);
  }

  /// Rotates the first rotary_dim values; `scratch`: rotary_dim floats.
  template <typename T>
  static void rotate(const AttentionShape& shape, const AttentionTensors& tensors, std::int64_t position, float* row,
                     float* scratch) {
    const int half = shape.rotary_dim / 2;
    float* const cos = scratch;
    float* const sin = scratch + half;
    load_row(reinterpret_cast<const T*>(tensors.cos) + position * half, half, cos);
    load_row(reinterpret_cast<const T*>(tensors.sin) + position * half, half, sin);
    if (shape.interleaved) {
      for (int i = 0; i < half; ++i) {
        const float x = row[2 * i];
        const float y = row[2 * i + 1];
        row[2 * i] = x * cos[i] - y * sin[i];
        row[2 * i + 1] = x * sin[i] + y * cos[i];
      }
      return;
    }
    for (int i = 0; i < half; ++i) {
      const float x = row[i];
      const float y = row[i + half];
      row[i] = x * cos[i] - y * sin[i];
      row[i + half] = x * sin[i] + y * cos[i];
    }
  }

  /// A head's row of query or key as floats, normalised and rotated.
  template <typename T>
  static void prepare_row(const AttentionShape& shape, const AttentionTensors& tensors, const T* src,
                          const std::byte* norm, std::int64_t position, float* row, float* scratch) {
    load_row(src, shape.head_dim, row);
    if (norm != nullptr) normalise(reinterpret_cast<const T*>(norm), shape.head_dim, shape.norm_epsilon, row);
    if (shape.rotary_dim > 0) rotate<T>(shape, tensors, position, row, scratch);
  }

  // ---- writing KV ----

  /// Quantises `row` in place to whole numbers -127..127 and returns what one of them is worth.
  static float quantise(float* row, int count) {
    float largest = 0.0F;
    for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(row[i]));
    const float scale = largest > 0.0F ? largest / 127.0F : 1.0F;
    for (int i = 0; i < count; ++i) row[i] = std::nearbyint(row[i] / scale);
    return scale;
  }

  static void store_element(float x, std::int8_t* out) {
    *out = static_cast<std::int8_t>(x > 127.0F ? 127.0F : x >= -127.0F ? x : -127.0F);
  }
  template <typename T>
  static void store_element(float x, T* out) {
    from_float(x, out);
  }

  /// Stores elements `stride` apart.
  template <typename TC>
  static void scatter_row(const float* row, int count, std::ptrdiff_t stride, TC* to) {
    int i = 0;
    if constexpr (requires(V v, TC* p) { v.store(p); }) {
      for (; i + 16 <= count; i += 16) {
        TC part[16];
        V::load(row + i).store(part);
        for (int j = 0; j < 16; ++j) to[(i + j) * stride] = part[j];
      }
    }
    for (; i < count; ++i) store_element(row[i], to + i * stride);
  }

  template <typename TC>
  static void store_token(const AttentionShape& shape, const AttentionTensors& tensors, const TokenSlot& at, float* key,
                          float* value) {
    const std::int64_t block_head = at.slot / shape.block_size * shape.kv_heads + at.kv_head;
    const std::int64_t offset = at.slot % shape.block_size;
    if constexpr (std::is_same_v<TC, std::int8_t>) {
      tensors.key_scale[block_head * shape.block_size + offset] = quantise(key, shape.head_dim);
      tensors.value_scale[block_head * shape.block_size + offset] = quantise(value, shape.value_dim);
    }
    TC* const keys = reinterpret_cast<TC*>(tensors.key_cache) + block_head * shape.head_dim * shape.block_size + offset;
    scatter_row(key, shape.head_dim, shape.block_size, keys);
    TC* const values =
        reinterpret_cast<TC*>(tensors.value_cache) + (block_head * shape.block_size + offset) * shape.value_dim;
    if constexpr (std::is_same_v<TC, std::int8_t>) {
      for (int d = 0; d < shape.value_dim; ++d) store_element(value[d], values + d);
    } else {
      store_row(value, shape.value_dim, values);
    }
  }

  template <typename T>
  static void write_token_as(const AttentionShape& shape, const AttentionTensors& tensors, const TokenSlot& at,
                             float* scratch) {
    float* const key = scratch;
    float* const value = key + shape.head_dim;
    float* const rotary = value + shape.value_dim;
    const T* const keys = reinterpret_cast<const T*>(tensors.key) + at.token * tensors.key_stride;
    const T* const values = reinterpret_cast<const T*>(tensors.value) + at.token * tensors.value_stride;
    prepare_row(shape, tensors, keys + at.kv_head * shape.head_dim, tensors.key_norm, at.position, key, rotary);
    load_row(values + at.kv_head * shape.value_dim, shape.value_dim, value);
    switch (shape.kv) {
      case ElementKind::kFloat32:
        return store_token<float>(shape, tensors, at, key, value);
      case ElementKind::kFloat16:
        return store_token<Half>(shape, tensors, at, key, value);
      case ElementKind::kBFloat16:
        return store_token<BHalf>(shape, tensors, at, key, value);
      case ElementKind::kInt8:
        return store_token<std::int8_t>(shape, tensors, at, key, value);
    }
  }

  static void write_token(const AttentionShape& shape, const AttentionTensors& tensors, const TokenSlot& at,
                          float* scratch) {
    if (shape.io == ElementKind::kFloat16) return write_token_as<Half>(shape, tensors, at, scratch);
    write_token_as<float>(shape, tensors, at, scratch);
  }
};

}  // namespace
}  // namespace genai::kernels
