#include "genai/sched/waiting_queue.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

namespace genai::sched {
namespace {

SequenceState state(std::uint64_t order, int priority, double arrival) {
  SequenceState out;
  out.id = SequenceId{order};
  out.order = order;
  out.priority = priority;
  out.arrival = arrival;
  return out;
}

TEST_CASE("Queue_WithoutAgeing_ServesByPriorityThenArrival") {
  SequenceState low = state(0, -1, 0.0);
  SequenceState early = state(1, 2, 1.0);
  SequenceState late = state(2, 2, 2.0);
  WaitingQueue queue(0.0);

  queue.push(late);
  queue.push(low);
  queue.push(early);

  CHECK(queue.head(1e9) == &early);
  queue.erase(early);
  CHECK(queue.head(1e9) == &late);
  queue.erase(late);
  CHECK(queue.head(1e9) == &low);
  queue.erase(low);
  CHECK(queue.head(1e9) == nullptr);
  CHECK(queue.empty());
}

TEST_CASE("WaitingSequence_ForEachAgeingPeriod_GainsOnePriority") {
  SequenceState low = state(0, 0, 0.0);
  SequenceState high = state(1, 3, 20.0);
  WaitingQueue queue(10.0);

  queue.push(low);
  queue.push(high);

  // low: now / 10; high: 3 + (now - 20) / 10, that is, one ahead for ever; a later one of 3 is behind from 30 s on.
  CHECK(queue.head(20.0) == &high);
  CHECK(queue.head(1000.0) == &high);
  CHECK(queue.effective_priority(low, 25.0) == doctest::Approx(2.5));
  queue.erase(high);
  SequenceState later = state(2, 3, 31.0);
  queue.push(later);
  CHECK(queue.head(31.0) == &low);
  CHECK(queue.most_urgent() == &later);
  CHECK(queue.has_before(state(3, 3, 31.0), 31.0));
  CHECK_FALSE(queue.has_before(state(3, 9, 31.0), 31.0));
}

TEST_CASE("SequenceThatReturns_ToItsLine_TakesItsOldPlace") {
  SequenceState first = state(0, 1, 0.0);
  SequenceState second = state(1, 1, 0.0);
  WaitingQueue queue(1.0);

  queue.push(second);
  queue.push(first);

  CHECK(queue.head(5.0) == &first);
  CHECK(queue.size() == 2);
}

TEST_CASE("Sequence_QueuedTwiceOrTakenTwice_IsAnInternalError") {
  SequenceState one = state(0, 1, 0.0);
  WaitingQueue queue(1.0);

  queue.push(one);

  CHECK_THROWS_AS(queue.push(one), Error);
  queue.erase(one);
  CHECK_THROWS_AS(queue.erase(one), Error);
}

}  // namespace
}  // namespace genai::sched
