#include "genai/sched/sequence_pool.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <memory>

namespace genai::sched {
namespace {

SequenceState& add(SequencePool& pool, std::uint64_t id, int priority = 0) {
  auto state = std::make_unique<SequenceState>();
  state->id = SequenceId{id};
  state->priority = priority;
  return pool.add(std::move(state));
}

TEST_CASE("Sequence_ThroughItsPhases_IsInOneListAtATime") {
  SequencePool pool(10.0);
  SequenceState& one = add(pool, 1);

  pool.queue(one);
  CHECK(pool.waiting().size() == 1);
  pool.run(one, 0.0);
  CHECK(pool.waiting().empty());
  CHECK(pool.running() == SequencePool::States{&one});
  pool.rest(one);
  CHECK(pool.running().empty());
  CHECK(pool.idle() == SequencePool::States{&one});
  pool.park(one);
  CHECK(pool.idle().empty());
  const auto state = pool.remove(one);
  CHECK(state->phase == SequenceState::Phase::kRemoved);
  CHECK(pool.find(SequenceId{1}) == nullptr);
}

TEST_CASE("RunningSequences_AreOrdered_ByRankThenArrival") {
  SequencePool pool(10.0);
  SequenceState& a = add(pool, 1, 0);
  SequenceState& b = add(pool, 2, 5);
  SequenceState& c = add(pool, 3, 0);

  pool.run(c, 0.0);
  pool.run(b, 5.0);
  pool.run(a, 0.0);

  CHECK(pool.running() == SequencePool::States{&b, &a, &c});
}

TEST_CASE("OlderSequence_WhenAYoungerOfItsClassRunsWithAHigherRank_IsRaised") {
  SequencePool pool(10.0);
  SequenceState& old = add(pool, 1, 0);
  SequenceState& other = add(pool, 2, 2);
  SequenceState& young = add(pool, 3, 0);
  pool.run(old, 0.0);
  pool.run(other, 2.0);

  pool.run(young, 3.0);

  CHECK(pool.running() == SequencePool::States{&old, &young, &other});
  CHECK(old.rank == 3.0);
  CHECK(other.rank == 2.0);
}

TEST_CASE("Sequence_AddedTwiceOrUnknown_IsAnInternalError") {
  SequencePool pool(10.0);
  add(pool, 1);

  CHECK_THROWS_AS(add(pool, 1), Error);
  CHECK_THROWS_AS(pool.at(SequenceId{2}), Error);
}

}  // namespace
}  // namespace genai::sched
