#include "genai/runner/kv_layout.h"

#include "genai/base/error.h"

#include <cstring>

namespace genai::runner {

KvLayout::KvLayout(const KvPair& pair, const std::string& model_path)
    : dtype_(pair.dtype),
      dims_(std::span<const std::int64_t>(pair.dims)),
      batch_axis_(static_cast<std::size_t>(pair.batch_axis)),
      sequence_axis_(static_cast<std::size_t>(pair.sequence_axis)) {
  if (pair.batch_axis < 0 || batch_axis_ >= sequence_axis_ || sequence_axis_ >= dims_.rank()) {
    throw Error(ErrorCode::kBadPackage, model_path + ": input \"" + pair.past + "\" " + dims_.text() +
                                            " has batch axis " + std::to_string(pair.batch_axis) +
                                            " and sequence axis " + std::to_string(pair.sequence_axis) +
                                            "; the sequence axis must come after the batch axis.");
  }
  if (dims_[batch_axis_] > 0) fixed_batch_ = dims_[batch_axis_];
  if (dims_[sequence_axis_] > 0) fixed_positions_ = dims_[sequence_axis_];
  dims_[batch_axis_] = 1;
  dims_[sequence_axis_] = 1;
  for (std::size_t axis = 0; axis < dims_.rank(); ++axis) {
    if (dims_[axis] > 0) continue;
    throw Error(ErrorCode::kBadPackage,
                model_path + ": input \"" + pair.past + "\" has no fixed size in axis " + std::to_string(axis) +
                    "; only the batch and the sequence axis may be symbolic. Give the model's head count and head "
                    "size in its config, or export it with fixed sizes.");
  }
  outer_ = dims_.product(0, batch_axis_);
  heads_ = dims_.product(batch_axis_ + 1, sequence_axis_);
  value_bytes_ = static_cast<std::size_t>(dims_.product(sequence_axis_ + 1, dims_.rank())) * genai::size_bytes(dtype_);
}

Dims KvLayout::dims(std::int64_t batch, std::int64_t positions) const {
  Dims dims = dims_;
  dims[batch_axis_] = batch;
  dims[sequence_axis_] = positions;
  return dims;
}

std::size_t KvLayout::size_bytes(std::int64_t batch, std::int64_t positions) const {
  return static_cast<std::size_t>(batch * positions) * bytes_per_position();
}

std::byte* KvLayout::address(const Place& place, std::int64_t outer, std::int64_t head) const {
  const std::int64_t block = (outer * place.batch + place.row) * heads_ + head;
  return place.data + static_cast<std::size_t>(block * place.positions + place.first) * value_bytes_;
}

void KvLayout::copy(const Place& from, const Place& to, std::int64_t count) const {
  const std::size_t size = static_cast<std::size_t>(count) * value_bytes_;
  if (size == 0) return;
  for (std::int64_t outer = 0; outer < outer_; ++outer) {
    for (std::int64_t head = 0; head < heads_; ++head) {
      std::memcpy(address(to, outer, head), address(from, outer, head), size);
    }
  }
}

void KvLayout::clear(const Place& at, std::int64_t count) const {
  const std::size_t size = static_cast<std::size_t>(count) * value_bytes_;
  if (size == 0) return;
  for (std::int64_t outer = 0; outer < outer_; ++outer) {
    for (std::int64_t head = 0; head < heads_; ++head) std::memset(address(at, outer, head), 0, size);
  }
}

}  // namespace genai::runner
