#include "genai/runner/slot_table.h"

#include "genai/base/error.h"

#include <algorithm>

namespace genai::runner {

std::optional<int> SlotTable::find(SequenceId id) const {
  const auto found = slots_.find(id);
  return found == slots_.end() ? std::nullopt : std::optional<int>(found->second);
}

int SlotTable::add(SequenceId id) {
  const auto hole = std::find_if(rows_.begin(), rows_.end(), [](const Row& row) { return !row.used; });
  const int slot = static_cast<int>(hole - rows_.begin());
  check(slots_.try_emplace(id, slot).second, "a sequence was given a second slot");
  if (hole == rows_.end()) rows_.emplace_back();
  rows_[static_cast<std::size_t>(slot)] = {.used = true, .id = id, .length = 0};
  return slot;
}

std::optional<int> SlotTable::remove(SequenceId id) {
  const auto found = slots_.find(id);
  if (found == slots_.end()) return std::nullopt;
  const int slot = found->second;
  slots_.erase(found);
  rows_[static_cast<std::size_t>(slot)] = Row{};
  drop_free_tail();
  return slot;
}

std::optional<SlotTable::Move> SlotTable::compact() {
  const auto hole = std::find_if(rows_.begin(), rows_.end(), [](const Row& row) { return !row.used; });
  if (hole == rows_.end()) return std::nullopt;
  const int to = static_cast<int>(hole - rows_.begin());
  const int from = num_slots() - 1;
  *hole = rows_.back();
  rows_.back() = Row{};
  slots_[hole->id] = to;
  drop_free_tail();
  return Move{.from = from, .to = to, .length = rows_[static_cast<std::size_t>(to)].length};
}

std::int64_t SlotTable::longest() const {
  std::int64_t longest = 0;
  for (const Row& row : rows_) longest = std::max(longest, row.length);
  return longest;
}

void SlotTable::drop_free_tail() {
  while (!rows_.empty() && !rows_.back().used) rows_.pop_back();
}

}  // namespace genai::runner
