#pragma once

#include "genai/base/ids.h"

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace genai::runner {

/// Which sequence lives in which slot of the KV buffers, and how many positions of it are computed. Bookkeeping only.
/// One thread.
///
/// A released slot is a hole that the next sequence takes; compaction fills what holes remain with the sequences of the
/// highest slots, so that the slots in use are 0 .. num_sequences() - 1.
class SlotTable {
 public:
  /// A sequence that must be moved in memory.
  struct Move {
    int from = 0;
    int to = 0;
    std::int64_t length = 0;
  };

  int num_sequences() const { return static_cast<int>(slots_.size()); }
  /// One more than the highest slot in use.
  int num_slots() const { return static_cast<int>(rows_.size()); }

  /// Slot of the sequence; nullopt when it has none.
  std::optional<int> find(SequenceId id) const;
  /// Gives the sequence the lowest free slot, with length 0. Requires: it has none.
  int add(SequenceId id);
  /// Frees the slot of the sequence and returns it; nullopt when it has none.
  std::optional<int> remove(SequenceId id);
  /// Moves the sequence of the highest slot into the lowest hole; nullopt when there is no hole. Call until then.
  std::optional<Move> compact();

  bool used(int slot) const { return rows_[static_cast<std::size_t>(slot)].used; }
  std::int64_t length(int slot) const { return rows_[static_cast<std::size_t>(slot)].length; }
  void set_length(int slot, std::int64_t length) { rows_[static_cast<std::size_t>(slot)].length = length; }
  /// Longest length of all; 0 when empty.
  std::int64_t longest() const;

 private:
  struct Row {
    bool used = false;
    SequenceId id;
    std::int64_t length = 0;
  };
  void drop_free_tail();

  std::vector<Row> rows_;  ///< the last one is in use
  std::unordered_map<SequenceId, int> slots_;
};

}  // namespace genai::runner
