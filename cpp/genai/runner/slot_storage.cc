#include "genai/runner/slot_storage.h"

#include "genai/base/error.h"

#include <algorithm>

namespace genai::runner {

SlotStorage::SlotStorage(const std::vector<KvLayout>& layouts) : layouts_(layouts), stores_(layouts.size()) {
  for (const KvLayout& layout : layouts) {
    if (layout.rows_are_contiguous()) continue;
    throw Error(ErrorCode::kUnsupported,
                "the slot decoder needs KV tensors whose first axis is the batch; this graph needs the copy decoder");
  }
}

std::int64_t SlotStorage::bytes() const {
  std::size_t bytes = 0;
  for (const Store& store : stores_) bytes += store.buffer.size_bytes();
  return static_cast<std::int64_t>(bytes);
}

std::size_t SlotStorage::slot_bytes(std::size_t pair) const {
  return layouts_[pair].size_bytes(1, stores_[pair].capacity);
}

KvLayout::Place SlotStorage::place(std::size_t pair, int slot) const {
  const Store& store = stores_[pair];
  return {.data = store.buffer.data(), .batch = store.slots, .positions = store.capacity, .row = slot, .first = 0};
}

void SlotStorage::reserve(int slots, std::int64_t capacity, const SlotTable& table) {
  if (slots <= slots_ && capacity <= capacity_) return;
  slots = std::max(slots, slots_);
  capacity = std::max(capacity, capacity_);
  ++generation_;
  // Each pair is complete in its old or its new buffer when the next one fails.
  for (std::size_t pair = 0; pair < layouts_.size(); ++pair) {
    const KvLayout& layout = layouts_[pair];
    const std::int64_t positions = layout.fixed_positions() > 0 ? layout.fixed_positions() : capacity;
    if (stores_[pair].slots >= slots && stores_[pair].capacity >= positions) continue;
    Store grown{tensor::Buffer(layout.size_bytes(slots, positions)), slots, positions};
    for (int slot = 0; slot < std::min(table.num_slots(), stores_[pair].slots); ++slot) {
      const KvLayout::Place to{grown.buffer.data(), slots, positions, slot, 0};
      layout.copy(place(pair, slot), to, std::min(table.length(slot), stores_[pair].capacity));
    }
    stores_[pair] = std::move(grown);
  }
  slots_ = slots;
  capacity_ = capacity;
}

void SlotStorage::clear() {
  if (slots_ == 0) return;
  for (Store& store : stores_) store = Store{};
  slots_ = 0;
  capacity_ = 0;
  ++generation_;
}

void SlotStorage::copy(int from, int to, std::int64_t length) {
  for (std::size_t pair = 0; pair < layouts_.size(); ++pair) {
    layouts_[pair].copy(place(pair, from), place(pair, to), length);
  }
}

void SlotStorage::discard(int slot) {
  for (std::size_t pair = 0; pair < layouts_.size(); ++pair) {
    stores_[pair].buffer.discard(static_cast<std::size_t>(slot) * slot_bytes(pair), slot_bytes(pair));
  }
}

ort::Value SlotStorage::view(std::size_t pair, int first, int count, const ort::Library& library) const {
  std::byte* const data = stores_[pair].buffer.data() + static_cast<std::size_t>(first) * slot_bytes(pair);
  return ort::Value::view(library, layouts_[pair].dtype(), layouts_[pair].dims(count, stores_[pair].capacity), data);
}

}  // namespace genai::runner
