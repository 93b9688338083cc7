#include "genai/kv/block_pool.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace genai::kv {
namespace {

/// Takes all available places in the order in which they would be used again.
std::vector<std::int32_t> drain(BlockPool& pool) {
  std::vector<std::int32_t> order;
  while (pool.num_available() > 0) {
    pool.set_findable(pool.front(), false);
    order.push_back(pool.allocate());
  }
  return order;
}

TEST_CASE("NewPool_Drained_GivesLowestFirst") {
  BlockPool pool(3);

  CHECK(drain(pool) == std::vector<std::int32_t>{0, 1, 2});
  CHECK(pool.num_held() == 3);
  CHECK(pool.num_free() == 0);
}

TEST_CASE("EmptyPool_HasNothing") {
  BlockPool pool(0);

  CHECK(pool.size() == 0);
  CHECK(pool.num_available() == 0);
  CHECK_THROWS_AS(pool.front(), Error);
  pool.check_invariants();
}

TEST_CASE("ReleasedPlaces_FreeGoBeforeCached_CachedInOrderOfRelease") {
  BlockPool pool(4);
  drain(pool);
  pool.set_findable(2, true);
  pool.set_findable(0, true);

  pool.release(2);
  pool.release(1);
  pool.release(0);
  pool.release(3);

  CHECK(pool.num_free() == 2);
  CHECK(pool.num_cached() == 2);
  CHECK(drain(pool) == std::vector<std::int32_t>{3, 1, 2, 0});
}

TEST_CASE("CachedPlace_HeldAndReleased_GoesToTheBack") {
  BlockPool pool(2);
  for (const std::int32_t place : drain(pool)) {
    pool.set_findable(place, true);
    pool.release(place);
  }

  pool.add_ref(0);
  CHECK(pool.num_cached() == 1);
  pool.release(0);

  CHECK(drain(pool) == std::vector<std::int32_t>{1, 0});
}

TEST_CASE("CachedPlace_NoLongerFindable_GoesToTheFront") {
  BlockPool pool(3);
  for (const std::int32_t place : drain(pool)) {
    pool.set_findable(place, true);
    pool.release(place);
  }

  pool.set_findable(2, false);

  CHECK(pool.front() == 2);
  CHECK(pool.num_free() == 1);
  CHECK(pool.num_cached() == 2);
}

TEST_CASE("SharedPlace_ReleasedOnce_StaysHeld") {
  BlockPool pool(1);
  const std::int32_t place = pool.allocate();
  pool.add_ref(place);

  pool.release(place);

  CHECK(pool.num_refs(place) == 1);
  CHECK(pool.num_available() == 0);
}

TEST_CASE("WrongUse_Throws") {
  BlockPool pool(1);

  CHECK_THROWS_WITH_AS(pool.release(0), doctest::Contains("nobody holds"), Error);
  pool.set_findable(0, true);
  CHECK_THROWS_WITH_AS(pool.allocate(), doctest::Contains("before it was evicted"), Error);
}

TEST_CASE("RandomUse_Invariants_Hold") {
  std::mt19937 random(5);
  BlockPool pool(9);

  for (int i = 0; i < 20000; ++i) {
    const std::int32_t place = static_cast<std::int32_t>(random() % 9);
    switch (random() % 4) {
      case 0:
        pool.add_ref(place);
        break;
      case 1:
        if (pool.num_refs(place) > 0) pool.release(place);
        break;
      case 2:
        pool.set_findable(place, random() % 2 == 0);
        break;
      default:
        if (pool.num_free() > 0) pool.allocate();
    }
    pool.check_invariants();
    CHECK(pool.num_free() + pool.num_cached() + pool.num_held() == 9);
  }
}

}  // namespace
}  // namespace genai::kv
