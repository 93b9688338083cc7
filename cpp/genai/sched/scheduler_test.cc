#include "genai/sched/scheduler.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <vector>

namespace genai::sched {
namespace {

NewSequence sequence(std::uint64_t id, std::size_t prompt_size, std::int64_t max_total) {
  return {.id = SequenceId{id}, .prompt = std::vector<TokenId>(prompt_size, 7), .max_total_tokens = max_total};
}

/// Samples token 1 for each row that asks for logits.
StepResult sample_all(const StepPlan& plan) {
  StepResult result;
  for (const ScheduledSequence& s : plan.sequences) {
    result.sequences.push_back({s.id, s.needs_logits ? std::optional<TokenId>(1) : std::nullopt, std::nullopt});
  }
  return result;
}

struct Share {
  std::uint64_t id;
  std::int64_t computed;
  std::int64_t scheduled;
  bool logits;
  friend bool operator==(const Share&, const Share&) = default;
};

std::vector<Share> shares(const StepPlan& plan) {
  std::vector<Share> out;
  for (const ScheduledSequence& s : plan.sequences) {
    out.push_back({s.id.value, s.num_computed_tokens, s.num_scheduled_tokens, s.needs_logits});
  }
  return out;
}

TEST_CASE("Prompt_LongerThanBudget_RunsInChunks") {
  Scheduler scheduler({.max_num_batched_tokens = 8}, kv::TokenBudget(1000));
  scheduler.add(sequence(1, 20, 30));

  StepPlan plan = scheduler.schedule();
  CHECK(shares(plan) == std::vector<Share>{{1, 0, 8, false}});
  scheduler.update(sample_all(plan));
  plan = scheduler.schedule();
  CHECK(shares(plan) == std::vector<Share>{{1, 8, 8, false}});
  scheduler.update(sample_all(plan));
  plan = scheduler.schedule();
  CHECK(shares(plan) == std::vector<Share>{{1, 16, 4, true}});
  scheduler.update(sample_all(plan));
  plan = scheduler.schedule();
  CHECK(shares(plan) == std::vector<Share>{{1, 20, 1, true}});
}

TEST_CASE("DecodeRows_WithAWaitingPrompt_GoFirstAndBoundThePrefill") {
  Scheduler scheduler({.max_num_batched_tokens = 100, .max_prefill_tokens_while_decoding = 4}, kv::TokenBudget(1000));
  scheduler.add(sequence(1, 3, 30));
  scheduler.update(sample_all(scheduler.schedule()));
  scheduler.add(sequence(2, 10, 30));

  StepPlan plan = scheduler.schedule();
  CHECK(shares(plan) == std::vector<Share>{{1, 3, 1, true}, {2, 0, 4, false}});
  scheduler.update(sample_all(plan));
  plan = scheduler.schedule();
  CHECK(shares(plan) == std::vector<Share>{{1, 4, 1, true}, {2, 4, 4, false}});
}

TEST_CASE("Prompt_ThatCannotBeChunked_RunsWholeInOneStep") {
  Scheduler scheduler({.max_num_batched_tokens = 4, .can_chunk_prefill = false}, kv::TokenBudget(1000));
  scheduler.add(sequence(1, 9, 30));

  CHECK(shares(scheduler.schedule()) == std::vector<Share>{{1, 0, 9, true}});
}

TEST_CASE("Sequences_BeyondMaxNumSeqs_WaitInOrder") {
  Scheduler scheduler({.max_num_seqs = 2}, kv::TokenBudget(1000));
  for (std::uint64_t id = 1; id <= 3; ++id) scheduler.add(sequence(id, 2, 3));

  StepPlan plan = scheduler.schedule();
  CHECK(shares(plan) == std::vector<Share>{{1, 0, 2, true}, {2, 0, 2, true}});
  const auto finished = scheduler.update(sample_all(plan));
  REQUIRE(finished.size() == 2);
  CHECK(finished[0].reason == FinishReason::kLength);
  CHECK(shares(scheduler.schedule()) == std::vector<Share>{{3, 0, 2, true}});
}

TEST_CASE("QueueHead_ThatDoesNotFitTheKvBudget_IsNotOvertaken") {
  Scheduler scheduler({}, kv::TokenBudget(20));
  scheduler.add(sequence(1, 4, 12));
  scheduler.add(sequence(2, 4, 12));
  scheduler.add(sequence(3, 1, 2));

  const StepPlan plan = scheduler.schedule();

  CHECK(shares(plan) == std::vector<Share>{{1, 0, 4, true}});
  CHECK(scheduler.num_waiting() == 2);
  scheduler.update(sample_all(plan));
  CHECK_FALSE(scheduler.remove(SequenceId{3}));
  CHECK(scheduler.remove(SequenceId{1}));
  CHECK(scheduler.budget().reserved() == 0);
  CHECK(shares(scheduler.schedule()) == std::vector<Share>{{2, 0, 4, true}});
}

TEST_CASE("Fork_WithRoom_ContinuesAfterThePrompt") {
  Scheduler scheduler({}, kv::TokenBudget(100));
  scheduler.add(sequence(1, 5, 8));
  const StepPlan plan = scheduler.schedule();

  CHECK(scheduler.fork(SequenceId{1}, sequence(2, 5, 8)));
  StepResult result = sample_all(plan);
  result.sequences.push_back({SequenceId{2}, 9, std::nullopt});
  CHECK(scheduler.update(result).empty());

  CHECK(shares(scheduler.schedule()) == std::vector<Share>{{1, 5, 1, true}, {2, 5, 1, true}});
  CHECK(scheduler.tokens(SequenceId{2}).back() == 9);
}

TEST_CASE("Fork_WithoutRoom_QueuesTheChildWithItsPrompt") {
  Scheduler scheduler({.max_num_seqs = 1}, kv::TokenBudget(100));
  scheduler.add(sequence(1, 5, 6));
  const StepPlan plan = scheduler.schedule();

  CHECK_FALSE(scheduler.fork(SequenceId{1}, sequence(2, 5, 6)));
  CHECK(scheduler.update(sample_all(plan)).size() == 1);

  CHECK(shares(scheduler.schedule()) == std::vector<Share>{{2, 0, 5, true}});
}

TEST_CASE("SequenceRemovedDuringAStep_ItsResult_IsIgnored") {
  Scheduler scheduler({}, kv::TokenBudget(100));
  scheduler.add(sequence(1, 5, 8));
  const StepPlan plan = scheduler.schedule();
  const StepResult result = sample_all(plan);

  CHECK(scheduler.remove(SequenceId{1}));

  CHECK(scheduler.update(result).empty());
  CHECK(scheduler.schedule().sequences.empty());
}

TEST_CASE("Config_WithZeroBudget_IsRefused") {
  CHECK_THROWS_AS(Scheduler({.max_num_batched_tokens = 0}, kv::TokenBudget(1)), Error);
}

}  // namespace
}  // namespace genai::sched
