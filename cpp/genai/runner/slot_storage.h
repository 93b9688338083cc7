#pragma once

#include "genai/ort/value.h"
#include "genai/runner/kv_layout.h"
#include "genai/runner/slot_table.h"
#include "genai/tensor/buffer.h"

#include <cstdint>
#include <span>
#include <vector>

namespace genai::runner {

/// The KV buffers [slots, ..., capacity, ...] of the slot decoder, one for each past/present pair. Positions that were
/// never written are zero. One thread.
class SlotStorage {
 public:
  /// Throws kUnsupported when a row of some layout is not contiguous. The layouts must outlive the storage.
  explicit SlotStorage(const std::vector<KvLayout>& layouts);

  int slots() const { return slots_; }
  std::int64_t capacity() const { return capacity_; }
  /// Grows with each change of memory, after which views must be made again.
  std::uint64_t generation() const { return generation_; }
  /// Bytes reserved; pages that were never written to take no physical memory.
  std::int64_t bytes() const;

  /// Makes room for at least `slots` and `capacity`; the lengths of the table's sequences are copied. Layouts with a
  /// fixed number of positions keep it. On kResourceExhausted all contents are as before. Cost: O(what is copied).
  void reserve(int slots, std::int64_t capacity, const SlotTable& table);
  /// Gives all memory back.
  void clear();

  /// Copies the first `length` positions of slot `from` to slot `to`.
  void copy(int from, int to, std::int64_t length);
  /// Makes a slot zero and gives its memory back.
  void discard(int slot);

  /// Slots [first, first + count) of a pair's buffer as a tensor.
  ort::Value view(std::size_t pair, int first, int count, const ort::Library& library) const;

 private:
  struct Store {
    tensor::Buffer buffer;
    int slots = 0;
    std::int64_t capacity = 0;
  };
  std::size_t slot_bytes(std::size_t pair) const;
  KvLayout::Place place(std::size_t pair, int slot) const;

  const std::vector<KvLayout>& layouts_;
  std::vector<Store> stores_;  ///< one for each layout
  int slots_ = 0;
  std::int64_t capacity_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace genai::runner
