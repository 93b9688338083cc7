#include "genai/kv/block_store.h"

#include <doctest/doctest.h>

#include <vector>

namespace genai::kv {
namespace {

using Tokens = std::vector<TokenId>;

PrefixKey constant_key(const PrefixKey& /*parent*/, std::span<const TokenId> /*tokens*/) {
  return {.low = 1, .high = 1};
}

KvConfig small(std::int64_t hot, std::int64_t warm = 0, std::int64_t cold = 0) {
  return {.block_size = 2, .num_hot_blocks = hot, .num_warm_blocks = warm, .num_cold_blocks = cold};
}

KvPlace place_in(KvTier tier, std::int32_t index) {
  return {.tier = tier, .index = index};
}

TEST_CASE("KeyOfAnotherPrefix_Publish_LeavesTheBlockAlone") {
  BlockStore store(small(2), &constant_key);
  const BlockId first = store.allocate();
  const BlockId second = store.allocate();
  const EntryRef entry = store.publish({}, "", Tokens{1, 2}, first);
  REQUIRE(entry);

  CHECK_FALSE(store.publish({}, "", Tokens{3, 4}, second));
  CHECK_FALSE(store.publish(entry, "", Tokens{1, 2}, second));
  CHECK_FALSE(store.publish({}, "other", Tokens{1, 2}, second));

  CHECK(store.match(Tokens{1, 2, 1, 2}, "", 9) == std::vector{entry});
  CHECK(store.match(Tokens{3, 4}, "", 9).empty());
  CHECK(store.match(Tokens{1, 2}, "other", 9).empty());
  CHECK_FALSE(store.is_findable(second));
  store.check_invariants();
}

TEST_CASE("KeyOfAnotherPrefix_Insert_StopsThere") {
  BlockStore store(small(4), &constant_key);

  const std::vector<KvManager::Slot> slots = store.insert(Tokens{1, 2, 3, 4}, "");

  CHECK(slots.size() == 1);
  CHECK(store.insert(Tokens{5, 6}, "").empty());
  CHECK(store.stats().hot_cached == 1);
  store.check_invariants();
}

TEST_CASE("EntryInWarm_RoomTakenByDroppingWhatIsAboveIt_FreesTheBlockWithoutAMove") {
  // The parent lies in the only warm slot and its child in the hot tier: making room for the child in warm drops the
  // parent, and so the child as well.
  BlockStore store(small(2, 1));
  const BlockId parent = store.allocate();
  const BlockId child = store.allocate();
  const EntryRef above = store.publish({}, "", Tokens{1, 2}, parent);
  store.publish(above, "", Tokens{3, 4}, child);
  store.release(parent);
  const BlockId other = store.allocate();  // sends the parent down
  CHECK(store.place(above) == place_in(KvTier::kWarm, 0));
  store.release(child);
  store.take_ops();

  const BlockId last = store.allocate();

  CHECK(last == child);
  CHECK(store.take_ops().empty());
  CHECK(store.match(Tokens{1, 2}, "", 9).empty());
  CHECK(store.stats().warm_used == 0);
  CHECK(store.stats().evicted_blocks == 2);
  store.release(other);
  store.check_invariants();
}

TEST_CASE("BlockPublishedAgain_SamePrefix_StaysAndAnotherThrows") {
  BlockStore store(small(2));
  const BlockId block = store.allocate();
  const EntryRef entry = store.publish({}, "", Tokens{1, 2}, block);

  CHECK(store.publish({}, "", Tokens{1, 2}, block) == entry);
  CHECK_THROWS_WITH(store.publish({}, "", Tokens{3, 4}, block), doctest::Contains("two prefixes"));
  store.check_invariants();
}

TEST_CASE("WritableBlock_IsHeldOnceAndNotFindable") {
  BlockStore store(small(2));
  const BlockId block = store.allocate();
  CHECK(store.is_writable(block));

  store.add_ref(block);
  CHECK_FALSE(store.is_writable(block));
  CHECK(store.is_shared(block));
  store.release(block);
  store.publish({}, "", Tokens{1, 2}, block);
  CHECK_FALSE(store.is_writable(block));
  store.unpublish(block);

  CHECK(store.is_writable(block));
  CHECK(store.stats().evicted_blocks == 0);
}

TEST_CASE("AcquiredEntries_AllHeldWhileRoomIsMade_NoneEvictsAnother") {
  // Two blocks in warm, two in hot: the first to come up must not push out one of the same prefix.
  BlockStore store(small(3, 2));
  std::vector<EntryRef> entries;
  std::vector<BlockId> blocks;
  for (TokenId i = 0; i < 3; ++i) {
    blocks.push_back(store.allocate());
    entries.push_back(store.publish(entries.empty() ? EntryRef{} : entries.back(), "", Tokens{i, i}, blocks.back()));
  }
  for (std::size_t i = 3; i > 0; --i) store.release(blocks[i - 1]);
  const BlockId other = store.allocate();  // sends the end down
  store.release(other);

  const std::vector<BlockId> held = store.acquire(store.match(Tokens{0, 0, 1, 1, 2, 2}, "", 9));

  CHECK(held == std::vector{blocks[0], blocks[1], other});
  CHECK(store.stats().hot_used == 3);
  CHECK(store.stats().warm_used == 0);
}

}  // namespace
}  // namespace genai::kv
