#include "genai/kv/kv_manager.h"

#include "genai/base/error.h"
#include "genai/kv/test_sequences.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace genai::kv {
namespace {

using namespace test;

// ---- starting and finding

TEST_CASE("CachedPrefix_Start_LeavesOneTokenToCompute") {
  KvManager manager(small(8));
  cache(manager, ids(8));

  CHECK(manager.start(kA, ids(8), "") == 4);
  CHECK(manager.start(kB, ids(9), "") == 8);
  CHECK(manager.start(kC, ids(4), "") == 0);
}

TEST_CASE("CachedPrefix_StartedTwice_SharesBlocks") {
  KvManager manager(small(8));
  cache(manager, ids(8));

  manager.start(kA, ids(12), "");
  manager.start(kB, ids(12), "");

  CHECK(table(manager, kA) == table(manager, kB));
  CHECK(manager.stats().hot_used == 2);
  CHECK(manager.stats().prefix_hit_tokens == 16);
  CHECK(manager.stats().prefix_queried_tokens == 8 + 12 + 12);
  CHECK(manager.take_ops().empty());
}

TEST_CASE("ReservedBlock_NotWritten_IsNotFound") {
  KvManager manager(small(8));
  manager.start(kA, ids(8), "");
  manager.reserve(kA, 8);

  CHECK(manager.find(ids(8), "").empty());
  CHECK(manager.start(kB, ids(9), "") == 0);

  manager.written(kA, Tokens(ids(7)));
  CHECK(manager.find(ids(8), "").size() == 1);
}

TEST_CASE("OtherSalt_SameTokens_NotFound") {
  KvManager manager(small(8));
  compute(manager, kA, ids(8), "adapter");

  CHECK(manager.start(kB, ids(9), "") == 0);
  CHECK(manager.start(kC, ids(9), "adapter") == 8);
}

TEST_CASE("PrefixCacheOff_NothingIsFoundOrKept") {
  KvConfig config = small(8);
  config.prefix_cache = false;
  KvManager manager(config);

  cache(manager, ids(8));

  CHECK(manager.start(kA, ids(9), "") == 0);
  CHECK(manager.stats().hot_cached == 0);
  CHECK(manager.insert(ids(8), "").empty());
}

TEST_CASE("SamePrefixComputedTwice_LaterBlocks_StayUnpublished") {
  KvManager manager(small(8));
  manager.start(kA, ids(8), "");
  manager.start(kB, ids(8), "");
  for (const SequenceId id : {kA, kB}) {
    REQUIRE(manager.reserve(id, 8));
    manager.written(id, ids(8));
  }

  const std::vector<KvPlace> places = manager.find(ids(8), "");

  CHECK(places == std::vector{hot(table(manager, kA)[0]), hot(table(manager, kA)[1])});
  manager.release(kB);
  CHECK(manager.stats().hot_cached == 0);
  manager.check_invariants();
}

TEST_CASE("SamePrefixComputedTwice_FirstHolderLeft_LaterBlockTakesItsPlace") {
  KvManager manager(small(4));
  manager.start(kA, ids(4), "");
  manager.start(kB, ids(4), "");
  REQUIRE(manager.reserve(kA, 4));
  REQUIRE(manager.reserve(kB, 4));
  manager.written(kA, ids(4));
  manager.release(kA);

  manager.written(kB, ids(4));

  CHECK(manager.find(ids(4), "") == std::vector{hot(table(manager, kB)[0])});
  CHECK(manager.stats().hot_cached == 0);
  manager.check_invariants();
}

TEST_CASE("PrefixOfAnotherSequenceWasEvicted_NextFullBlock_PublishesOwnPrefix") {
  KvManager manager(small(5));
  manager.start(kA, ids(4), "");
  manager.start(kB, ids(12), "");
  REQUIRE(manager.reserve(kA, 4));
  REQUIRE(manager.reserve(kB, 8));
  manager.written(kA, ids(4));
  manager.written(kB, ids(8));  // its second block stands below kA's first
  manager.release(kA);
  compute(manager, kC, ids(9, 500));  // evicts kA's block
  CHECK(manager.find(ids(12), "").empty());
  manager.release(kC);

  REQUIRE(manager.reserve(kB, 12));
  manager.written(kB, ids(12));

  CHECK(manager.find(ids(12), "").size() == 3);
  manager.check_invariants();
}

TEST_CASE("StartedTwice_Throws") {
  KvManager manager(small(2));
  manager.start(kA, ids(1), "");

  CHECK_THROWS_WITH_AS(manager.start(kA, ids(1), ""), doctest::Contains("started twice"), Error);
}

// ---- room

TEST_CASE("NoRoom_Reserve_ChangesNothing") {
  KvManager manager(small(2));
  compute(manager, kA, ids(4));
  manager.start(kB, ids(9, 500), "");

  CHECK_FALSE(manager.reserve(kB, 8));

  CHECK(manager.block_table(kB).empty());
  CHECK(manager.stats().hot_used == 1);
  CHECK(manager.reserve(kB, 4));
}

TEST_CASE("CouldHold_CountsWhatNobodyHolds") {
  KvManager manager(small(3));
  cache(manager, ids(8));
  compute(manager, kA, ids(2, 500));

  CHECK(manager.capacity_tokens() == 12);
  CHECK(manager.could_hold(8));
  CHECK_FALSE(manager.could_hold(9));
}

TEST_CASE("KvWithoutReservation_Throws") {
  KvManager manager(small(3));
  manager.start(kA, ids(5), "");
  manager.reserve(kA, 4);

  CHECK_THROWS_WITH_AS(manager.written(kA, ids(5)), doctest::Contains("not reserved"), Error);
}

TEST_CASE("WrongConfig_SaysWhatIsWrong") {
  CHECK_THROWS_WITH_AS(KvManager(KvConfig{.num_hot_blocks = 0}), doctest::Contains("num_hot_blocks is 0"), Error);
  CHECK_THROWS_WITH_AS(KvManager(KvConfig{.block_size = 0, .num_hot_blocks = 1}), doctest::Contains("block_size is 0"),
                       Error);
}

// ---- writing: forks, rewinds, copies

TEST_CASE("ForkWithinABlock_ChildWrites_CopiesThatBlockOnly") {
  KvManager manager(small(8));
  compute(manager, kA, ids(6));

  REQUIRE(manager.fork(kA, kB, 6));
  CHECK(table(manager, kB) == table(manager, kA));
  CHECK(take(manager).empty());
  REQUIRE(manager.reserve(kB, 7));

  CHECK(manager.block_table(kB)[0] == manager.block_table(kA)[0]);
  CHECK(take(manager) == std::vector<Bytes>{{kCopy, hot(manager.block_table(kA)[1]), hot(manager.block_table(kB)[1])}});
  CHECK(manager.stats().copied_blocks == 1);
  REQUIRE(manager.reserve(kA, 7));
  CHECK(take(manager).empty());
}

TEST_CASE("ForkAtABlocksEnd_ChildWrites_NothingIsCopied") {
  KvManager manager(small(8));
  compute(manager, kA, ids(8));

  REQUIRE(manager.fork(kA, kB, 4));
  REQUIRE(manager.reserve(kB, 6));

  CHECK(take(manager).empty());
  CHECK(manager.block_table(kB).size() == 2);
}

TEST_CASE("ForkAndItsParent_SameContinuation_IsPublishedOnce") {
  KvManager manager(small(8));
  compute(manager, kA, ids(4));
  manager.fork(kA, kB, 4);

  for (const SequenceId id : {kA, kB}) {
    REQUIRE(manager.reserve(id, 8));
    manager.written(id, ids(8));
  }

  CHECK(manager.find(ids(8), "")[1] == hot(manager.block_table(kA)[1]));
  manager.check_invariants();
}

TEST_CASE("SharedBlockWithoutRoomForACopy_Reserve_ChangesNothing") {
  KvManager manager(small(2));
  compute(manager, kA, ids(6));
  manager.fork(kA, kB, 6);
  const Table before = table(manager, kB);

  CHECK_FALSE(manager.reserve(kB, 7));

  CHECK(table(manager, kB) == before);
  CHECK(take(manager).empty());
  manager.release(kA);
  CHECK(manager.reserve(kB, 7));
  CHECK(take(manager).empty());
}

TEST_CASE("RewindIntoAFindableBlock_Reserve_CopiesIt") {
  KvManager manager(small(3));
  compute(manager, kA, ids(8));
  const Table before = table(manager, kA);

  manager.rewind(kA, 6);
  REQUIRE(manager.reserve(kA, 7));

  CHECK(take(manager) == std::vector<Bytes>{{kCopy, hot(before[1]), hot(manager.block_table(kA)[1])}});
  CHECK(manager.find(ids(8), "").size() == 2);
}

TEST_CASE("RewindIntoAFindableBlock_NoRoom_UnpublishesItInPlace") {
  KvManager manager(small(2));
  compute(manager, kA, ids(8));
  const Table before = table(manager, kA);

  manager.rewind(kA, 6);
  REQUIRE(manager.reserve(kA, 8));

  CHECK(take(manager).empty());
  CHECK(table(manager, kA) == before);
  CHECK(manager.find(ids(8), "").size() == 1);
  Tokens other = ids(6);
  other.insert(other.end(), {1, 2});
  manager.written(kA, other);
  CHECK(manager.find(other, "").size() == 2);
  manager.check_invariants();
}

TEST_CASE("WriteToAFindableBlock_Throws") {
  KvManager manager(small(3));
  compute(manager, kA, ids(8));
  manager.rewind(kA, 6);

  CHECK_THROWS_WITH_AS(manager.written(kA, ids(8)), doctest::Contains("others can find"), Error);
}

TEST_CASE("Rewind_GivesBlocksBack_ReservedOnesToo") {
  KvManager manager(small(6));
  compute(manager, kA, ids(6));
  manager.reserve(kA, 20);
  CHECK(manager.stats().hot_used == 5);

  manager.rewind(kA, 6);
  CHECK(manager.stats().hot_used == 2);
  manager.rewind(kA, 0);

  CHECK(manager.stats().hot_used == 0);
  CHECK(manager.stats().hot_cached == 1);
  CHECK_THROWS_WITH_AS(manager.rewind(kA, 1), doctest::Contains("rewound beyond"), Error);
}

TEST_CASE("ForkWhileParentWritesOn_ParentBlock_IsFoundAndChildGetsACopy") {
  KvManager manager(small(4));
  compute(manager, kA, ids(6));
  REQUIRE(manager.reserve(kA, 8));
  manager.fork(kA, kB, 6);

  manager.written(kA, ids(8));
  REQUIRE(manager.reserve(kB, 7));

  CHECK(take(manager).size() == 1);
  CHECK(manager.block_table(kA)[1] != manager.block_table(kB)[1]);
  CHECK(manager.find(ids(8), "").size() == 2);
}

// ---- saving and loading

TEST_CASE("Insert_MakesWhatIsMissing_AndStartFindsIt") {
  KvManager manager(small(4));
  cache(manager, ids(4));

  const std::vector<KvManager::Slot> slots = manager.insert(ids(13), "");

  REQUIRE(slots.size() == 3);
  CHECK_FALSE(slots[0].is_new);
  CHECK(slots[1].is_new);
  CHECK(slots[2].is_new);
  CHECK(manager.stats().hot_cached == 3);
  CHECK(manager.find(ids(13), "") == std::vector{slots[0].place, slots[1].place, slots[2].place});
  CHECK(manager.start(kA, ids(13), "") == 12);
}

TEST_CASE("Insert_MoreThanFits_StopsBeforeEvictingItself") {
  KvManager manager(small(3, 1));
  compute(manager, kA, ids(4, 500));

  const std::vector<KvManager::Slot> slots = manager.insert(ids(20), "");

  REQUIRE(slots.size() == 3);
  CHECK(slots[2].place == warm(0));
  CHECK(manager.find(ids(20), "").size() == 3);
  manager.check_invariants();
}

TEST_CASE("InsertedBlock_CouldNotBeFilled_IsForgotten") {
  KvManager manager(small(3));
  const std::vector<KvManager::Slot> slots = manager.insert(ids(8), "");

  manager.move_failed({.kind = kMove, .from = {}, .to = slots[1].place, .parent = {}, .child = {}});

  CHECK(manager.find(ids(8), "").size() == 1);
}

// ---- decoders with contiguous KV

KvConfig contiguous(std::int64_t blocks) {
  return {.block_size = 4, .num_hot_blocks = blocks, .num_warm_blocks = 3, .shares_blocks = false};
}

TEST_CASE("ContiguousKv_NothingIsCached") {
  KvManager manager(contiguous(4));

  cache(manager, ids(8));

  CHECK(manager.start(kA, ids(9), "") == 0);
  CHECK(manager.stats().hot_used + manager.stats().hot_cached == 0);
}

TEST_CASE("ContiguousKv_Fork_AllocatesAndCopies") {
  KvManager manager(contiguous(4));
  compute(manager, kA, ids(6));

  REQUIRE(manager.fork(kA, kB, 5));
  CHECK_FALSE(manager.fork(kA, kC, 1));
  CHECK_FALSE(manager.contains(kC));
  CHECK(manager.fork(kA, kC, 0));

  const std::vector<KvOp> ops = manager.take_ops();
  REQUIRE(ops.size() == 1);
  CHECK(ops[0].kind == KvOp::Kind::kCopySequence);
  CHECK(ops[0].parent == kA);
  CHECK(ops[0].child == kB);
  CHECK(ops[0].num_tokens == 5);
  CHECK(manager.stats().hot_used == 4);
  CHECK(manager.length(kB) == 5);
}

TEST_CASE("ContiguousKv_Release_IsAnOperationOnceSomethingWasReserved") {
  KvManager manager(contiguous(4));
  manager.start(kA, ids(5), "");
  manager.release(kA);
  CHECK(manager.take_ops().empty());
  compute(manager, kB, ids(5));
  manager.rewind(kB, 0);
  CHECK(manager.stats().hot_used == 0);

  manager.release(kB);

  const std::vector<KvOp> ops = manager.take_ops();
  REQUIRE(ops.size() == 1);
  CHECK(ops[0].kind == KvOp::Kind::kReleaseSequence);
  CHECK(ops[0].parent == kB);
}

}  // namespace
}  // namespace genai::kv
