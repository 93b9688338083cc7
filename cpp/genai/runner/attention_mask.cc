#include "genai/runner/attention_mask.h"

#include "genai/base/error.h"

#include <algorithm>

namespace genai::runner {
namespace {

/// Sets elements [first, end) of `memory` to `element` in the given type.
void fill(std::byte* memory, DType dtype, std::int64_t first, std::int64_t end, int element) {
  const auto fill_as = [&]<typename T>(T value) {
    T* const elements = reinterpret_cast<T*>(memory);
    std::fill(elements + first, elements + end, value);
  };
  switch (dtype) {
    case DType::kInt64:
      return fill_as(static_cast<std::int64_t>(element));
    case DType::kInt32:
      return fill_as(static_cast<std::int32_t>(element));
    case DType::kFloat32:
      return fill_as(static_cast<float>(element));
    case DType::kBool:
    case DType::kInt8:
    case DType::kUInt8:
      return fill_as(static_cast<std::uint8_t>(element));
    case DType::kFloat16:
      return fill_as(static_cast<std::uint16_t>(element == 0 ? 0 : 0x3C00));
    case DType::kBFloat16:
      return fill_as(static_cast<std::uint16_t>(element == 0 ? 0 : 0x3F80));
  }
}

}  // namespace

void AttentionMask::write(std::int64_t row, std::int64_t first, std::int64_t end, int element) {
  if (first < end) fill(elements_.data(), dtype_, row * width_ + first, row * width_ + end, element);
}

bool AttentionMask::set(std::span<const Row> rows, std::int64_t width) {
  if (rows.size() == 1 && rows[0] == Row{0, width}) return set_all_ones(width);

  const bool rebuilt = all_ones_ || width != width_ || rows.size() != rows_.size();
  if (rebuilt) {
    elements_.assign(rows.size() * static_cast<std::size_t>(width) * size_bytes(dtype_), std::byte{0});
    rows_.assign(rows.size(), Row{});
    width_ = width;
    all_ones_ = false;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row old = rows_[i];
    const Row now = rows[i];
    check(0 <= now.first && now.first <= now.end && now.end <= width, "a mask row leaves the mask");
    const auto row = static_cast<std::int64_t>(i);
    write(row, old.first, std::min(old.end, now.first), 0);
    write(row, std::max(old.first, now.end), old.end, 0);
    write(row, now.first, std::min(now.end, old.first), 1);
    write(row, std::max(now.first, old.end), now.end, 1);
    rows_[i] = now;
  }
  return rebuilt;
}

bool AttentionMask::set_all_ones(std::int64_t width) {
  const std::size_t size = static_cast<std::size_t>(width) * size_bytes(dtype_);
  const bool changed = !all_ones_ || width != width_ || ones_.size() < size;
  if (ones_.size() < size) {
    ones_.resize(std::max(size, 2 * ones_.size()));
    fill(ones_.data(), dtype_, 0, static_cast<std::int64_t>(ones_.size() / size_bytes(dtype_)), 1);
  }
  all_ones_ = true;
  rows_.clear();
  width_ = width;
  return changed;
}

ort::Value AttentionMask::value(const ort::Library& library) const {
  const std::int64_t num_rows = all_ones_ ? 1 : static_cast<std::int64_t>(rows_.size());
  const std::vector<std::byte>& memory = all_ones_ ? ones_ : elements_;
  // ONNX Runtime takes inputs as mutable memory and does not write to it.
  return ort::Value::view(library, dtype_, Dims{num_rows, width_}, const_cast<std::byte*>(memory.data()));
}

std::vector<int> AttentionMask::elements() const {
  const std::size_t count = static_cast<std::size_t>(width_) * (all_ones_ ? 1 : rows_.size());
  const std::byte* const memory = all_ones_ ? ones_.data() : elements_.data();
  std::vector<int> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* const element = memory + i * size_bytes(dtype_);
    result[i] =
        std::any_of(element, element + size_bytes(dtype_), [](std::byte b) { return b != std::byte{0}; }) ? 1 : 0;
  }
  return result;
}

}  // namespace genai::runner
