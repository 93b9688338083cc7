#include "genai/runner/slot_table.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

namespace genai::runner {

TEST_CASE("SlotTable_ReleasedSlot_IsTakenByTheNextSequence") {
  SlotTable table;
  CHECK(table.add(SequenceId{1}) == 0);
  CHECK(table.add(SequenceId{2}) == 1);
  CHECK(table.add(SequenceId{3}) == 2);

  CHECK(table.remove(SequenceId{2}) == 1);

  CHECK(table.num_slots() == 3);
  CHECK_FALSE(table.used(1));
  CHECK(table.add(SequenceId{4}) == 1);
  CHECK_FALSE(table.compact().has_value());
}

TEST_CASE("SlotTable_Compaction_MovesTheHighestIntoTheHole") {
  SlotTable table;
  for (std::uint64_t id = 1; id <= 3; ++id) table.set_length(table.add(SequenceId{id}), static_cast<std::int64_t>(id));
  table.remove(SequenceId{1});

  const std::optional<SlotTable::Move> move = table.compact();

  REQUIRE(move.has_value());
  CHECK(move->from == 2);
  CHECK(move->to == 0);
  CHECK(move->length == 3);
  CHECK(table.find(SequenceId{3}) == 0);
  CHECK(table.num_slots() == 2);
  CHECK_FALSE(table.compact().has_value());
}

TEST_CASE("SlotTable_UnknownOrKnownTwice_IsHandled") {
  SlotTable table;
  table.add(SequenceId{1});

  CHECK_FALSE(table.remove(SequenceId{2}).has_value());
  CHECK_FALSE(table.find(SequenceId{2}).has_value());
  CHECK_THROWS_AS(table.add(SequenceId{1}), Error);
}

TEST_CASE("SlotTable_RandomUse_KeepsEverySequenceWithItsLength") {
  std::mt19937 random(3);
  SlotTable table;
  std::map<std::uint64_t, std::int64_t> lengths;  // what must be in the table
  for (std::uint64_t id = 1; id <= 2000; ++id) {
    const std::int64_t length = static_cast<std::int64_t>(random() % 1000);
    if (random() % 2 == 0 || lengths.empty()) {
      table.set_length(table.add(SequenceId{id}), length);
      lengths[id] = length;
    } else {
      const auto victim = std::next(lengths.begin(), static_cast<std::ptrdiff_t>(random() % lengths.size()));
      CHECK(table.remove(SequenceId{victim->first}).has_value());
      lengths.erase(victim);
    }
    if (random() % 3 == 0) {
      while (table.compact()) {
      }
      CHECK(table.num_slots() == table.num_sequences());
    }

    CHECK(table.num_sequences() == static_cast<int>(lengths.size()));
    std::vector<int> uses(static_cast<std::size_t>(table.num_slots()), 0);
    std::int64_t longest = 0;
    for (const auto& [known, expected] : lengths) {
      const std::optional<int> slot = table.find(SequenceId{known});
      REQUIRE(slot.has_value());
      REQUIRE(table.used(*slot));
      REQUIRE(table.length(*slot) == expected);
      REQUIRE(++uses[static_cast<std::size_t>(*slot)] == 1);
      longest = std::max(longest, expected);
    }
    CHECK(table.longest() == longest);
  }
}

}  // namespace genai::runner
