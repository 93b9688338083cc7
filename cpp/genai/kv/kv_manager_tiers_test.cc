// Eviction, moves between tiers, and moves that fail.

#include "genai/kv/kv_manager.h"
#include "genai/kv/test_sequences.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace genai::kv {
namespace {

using namespace test;

// ---- eviction

TEST_CASE("FullPool_Allocating_EvictsLeastRecentlyUsedEndFirst") {
  KvManager manager(small(4));
  cache(manager, ids(8));
  cache(manager, ids(8, 500));

  compute(manager, kA, ids(4, 900));
  CHECK(manager.find(ids(8), "").size() == 1);
  CHECK(manager.find(ids(8, 500), "").size() == 2);
  compute(manager, kB, ids(8, 1300));

  CHECK(manager.find(ids(8), "").empty());
  CHECK(manager.find(ids(8, 500), "").size() == 1);
  CHECK(manager.stats().evicted_blocks == 3);
}

TEST_CASE("CachedPrefix_UsedAgain_IsEvictedLater") {
  KvManager manager(small(4));
  cache(manager, ids(8));
  cache(manager, ids(8, 500));
  manager.start(kA, ids(9), "");
  manager.release(kA);

  compute(manager, kB, ids(8, 900));

  CHECK(manager.find(ids(8), "").size() == 2);
  CHECK(manager.find(ids(8, 500), "").empty());
}

TEST_CASE("NeverFindableBlock_GoesBeforeACachedOne") {
  KvManager manager(small(3));
  cache(manager, ids(4));
  cache(manager, ids(3, 500));
  cache(manager, ids(8, 900));

  CHECK(manager.find(ids(4), "").size() == 1);
}

TEST_CASE("ClearCache_KeepsWhatIsHeld") {
  KvManager manager(small(4, 2, 2));
  cache(manager, ids(8, 500));
  compute(manager, kA, ids(16));

  manager.clear_cache();

  CHECK(manager.find(ids(16), "").size() == 4);
  const KvStats stats = manager.stats();
  CHECK(stats.hot_cached + stats.warm_used + stats.cold_used == 0);
  CHECK(stats.evicted_blocks == 0);
}

// ---- tiers

TEST_CASE("WarmTier_EvictedBlocks_MoveDownAndUpAgain") {
  KvManager manager(small(2, 2));
  cache(manager, ids(8));
  const std::vector<KvPlace> before = manager.find(ids(8), "");
  compute(manager, kA, ids(8, 500));

  CHECK(take(manager) == std::vector<Bytes>{{kMove, before[1], warm(0)}, {kMove, before[0], warm(1)}});
  CHECK(manager.find(ids(8), "") == std::vector{warm(1), warm(0)});
  CHECK(manager.stats().swapped_out_blocks == 2);
  CHECK(manager.stats().warm_used == 2);
  manager.release(kA);

  CHECK(manager.start(kB, ids(9), "") == 8);
  // Each block that comes up sends one of the other sequence down, into the slot that became free before.
  CHECK(manager.stats().swapped_in_blocks == 2);
  CHECK(manager.stats().swapped_out_blocks == 3);
  CHECK(manager.stats().evicted_blocks == 1);
  manager.check_invariants();
}

TEST_CASE("PromotionWithoutRoom_Start_TakesWhatFits") {
  KvManager manager(small(3, 3));
  cache(manager, ids(12));
  compute(manager, kA, ids(8, 500));
  compute(manager, kC, ids(1, 900));
  CHECK(manager.stats().warm_used == 3);
  manager.release(kC);

  CHECK(manager.start(kB, ids(13), "") == 4);

  CHECK(manager.find(ids(12), "").size() == 3);
  CHECK(manager.stats().warm_used == 2);
  manager.check_invariants();
}

TEST_CASE("OwnPrefix_PromotedPartly_IsNotEvictedByItself") {
  KvManager manager(small(3, 1));
  cache(manager, ids(12));
  compute(manager, kA, ids(4, 500));  // sends the end of the prefix down
  manager.release(kA);
  REQUIRE(manager.stats().warm_used == 1);

  CHECK(manager.start(kB, ids(13), "") == 12);

  CHECK(manager.find(ids(12), "").size() == 3);
}

TEST_CASE("WarmFull_EvictedBlock_PushesTheOldestToCold") {
  KvManager manager(small(1, 1, 1));
  cache(manager, ids(4));
  cache(manager, ids(4, 500));
  cache(manager, ids(4, 900));

  CHECK(take(manager) ==
        std::vector<Bytes>{{kMove, hot(0), warm(0)}, {kMove, warm(0), cold(0)}, {kMove, hot(0), warm(0)}});
  cache(manager, ids(4, 1300));

  CHECK(manager.find(ids(4), "").empty());
  CHECK(manager.find(ids(4, 500), "") == std::vector{cold(0)});
  CHECK(manager.stats().evicted_blocks == 1);
}

TEST_CASE("NoWarmTier_EvictedBlock_MovesToCold") {
  KvManager manager(small(1, 0, 1));
  cache(manager, ids(4));
  cache(manager, ids(4, 500));

  CHECK(take(manager) == std::vector<Bytes>{{kMove, hot(0), cold(0)}});
  CHECK(manager.stats().cold_used == 1);
}

TEST_CASE("MovingCostsMoreThanComputing_EvictedBlock_IsDropped") {
  KvManager manager(small(1, 4));
  manager.set_costs({.move_seconds = 2.0, .recompute_seconds = 1.0});
  cache(manager, ids(4));
  cache(manager, ids(4, 500));

  CHECK(take(manager).empty());
  CHECK(manager.stats().evicted_blocks == 1);
}

TEST_CASE("BlockInWarm_ComputedAgain_HotBlockTakesItsPlace") {
  KvManager manager(small(2, 2));
  cache(manager, ids(4));
  compute(manager, kA, ids(8, 500));
  REQUIRE(manager.find(ids(4), "") == std::vector{warm(0)});
  CHECK(manager.start(kB, ids(5), "") == 0);
  manager.release(kA);

  REQUIRE(manager.reserve(kB, 4));
  manager.written(kB, ids(4));

  CHECK(manager.find(ids(4), "") == std::vector{hot(manager.block_table(kB)[0])});
  manager.check_invariants();
}

// ---- moves that fail

TEST_CASE("FailedDemotion_BlockIsForgotten_AndWhatFollowsIt") {
  KvManager manager(small(2, 2));
  cache(manager, ids(8));
  compute(manager, kA, ids(8, 500));
  const std::vector<KvOp> ops = manager.take_ops();
  REQUIRE(ops.size() == 2);

  CHECK(manager.move_failed(ops[1]).empty());  // the first block of the prefix

  CHECK(manager.find(ids(8), "").empty());
  CHECK(manager.stats().warm_used == 0);
  CHECK(manager.stats().failed_moves == 1);
  manager.check_invariants();
}

TEST_CASE("FailedPromotion_HoldersAreNamed_AndStartAgainWithoutIt") {
  KvManager manager(small(2, 2));
  cache(manager, ids(8));
  cache(manager, ids(8, 500));
  manager.take_ops();
  REQUIRE(manager.start(kA, ids(9), "") == 8);
  const std::vector<KvOp> ops = manager.take_ops();
  const auto second = std::ranges::find(ops, hot(manager.block_table(kA)[1]), &KvOp::to);
  REQUIRE(second != ops.end());

  CHECK(manager.move_failed(*second) == std::vector{kA});
  manager.release(kA);

  CHECK(manager.start(kA, ids(9), "") == 4);
  manager.check_invariants();
}

TEST_CASE("FailedPromotion_CopyMadeFromIt_IsNamedToo") {
  KvManager manager(small(4, 2));
  cache(manager, ids(4));
  cache(manager, ids(16, 500));
  manager.take_ops();
  REQUIRE(manager.start(kA, ids(5), "") == 4);
  manager.fork(kA, kB, 2);
  REQUIRE(manager.reserve(kB, 3));
  manager.release(kA);
  const std::vector<KvOp> ops = manager.take_ops();
  const auto up = std::ranges::find(ops, KvTier::kWarm, [](const KvOp& op) { return op.from.tier; });
  REQUIRE(up != ops.end());

  CHECK(manager.move_failed(*up) == std::vector{kB});

  CHECK(manager.find(ids(4), "").empty());
}

TEST_CASE("FailedMove_PlaceFilledAgainByALaterMove_KeepsTheNewBlock") {
  KvManager manager(small(2, 1));
  for (const TokenId first : {100, 500, 900, 1300}) cache(manager, ids(4, first));
  const std::vector<KvOp> ops = manager.take_ops();
  REQUIRE(ops.size() == 2);
  REQUIRE(ops[0].to == ops[1].to);

  CHECK(manager.move_failed(ops[0]).empty());

  CHECK(manager.find(ids(4, 500), "") == std::vector{warm(0)});
  manager.check_invariants();
}

TEST_CASE("SameMoveTwiceInAList_LaterOneFailed_BlockIsForgotten") {
  KvManager manager(small(2, 1));
  for (const TokenId first : {100, 500, 900, 1300, 1700}) cache(manager, ids(4, first));
  const std::vector<KvOp> ops = manager.take_ops();
  REQUIRE(ops.size() == 3);
  REQUIRE(ops[0].from == ops[2].from);
  REQUIRE(manager.find(ids(4, 900), "") == std::vector{warm(0)});

  manager.move_failed(ops[2]);

  CHECK(manager.find(ids(4, 900), "").empty());
}

TEST_CASE("FailedDemotion_ReportedAfterTheNextStart_HolderIsNamed") {
  KvManager manager(small(2, 2));
  cache(manager, ids(4));
  compute(manager, kA, ids(8, 500));
  manager.release(kA);
  const std::vector<KvOp> ops = manager.take_ops();
  REQUIRE(ops.size() == 1);
  REQUIRE(manager.start(kB, ids(5), "") == 4);  // its promotion is not taken yet

  CHECK(manager.move_failed(ops[0]) == std::vector{kB});

  CHECK(manager.find(ids(4), "").empty());
  manager.check_invariants();
}

TEST_CASE("FailedDemotion_BlockCameUpAgainInTheSameList_HolderIsNamed") {
  KvManager manager(small(2, 2));
  cache(manager, ids(4));
  compute(manager, kA, ids(8, 500));
  manager.release(kA);
  REQUIRE(manager.start(kB, ids(5), "") == 4);
  const std::vector<KvOp> ops = manager.take_ops();
  REQUIRE(ops.front().to == ops.back().from);
  REQUIRE(ops.back().to.tier == KvTier::kHot);

  CHECK(manager.move_failed(ops.front()) == std::vector{kB});
  CHECK(manager.move_failed(ops.back()) == std::vector{kB});
  manager.release(kB);

  CHECK(manager.find(ids(4), "").empty());
  manager.check_invariants();
}

}  // namespace
}  // namespace genai::kv
