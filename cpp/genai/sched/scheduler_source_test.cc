#include "genai/sched/scheduler.h"
#include "genai/sched/test_plans.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>

namespace genai::sched {
namespace {

/// A sequence of an encoder-decoder: one token to begin with, and a source.
NewSequence with_source(std::uint64_t id, std::int64_t num_source_tokens) {
  return {
      .id = SequenceId{id},
      .prompt = {1},
      .max_total_tokens = 20,
      .cache_salt = {},
      .encoder_inputs = std::make_shared<EncoderInputs>(EncoderInputs{.tensors = {}, .num_tokens = num_source_tokens})};
}

kv::KvConfig much_kv() {
  return {.block_size = 4, .num_hot_blocks = 100, .shares_blocks = false};
}

TEST_CASE("Sources_OfNewSequences_CountAsTokensOfTheirFirstStep") {
  for (const bool can_chunk : {false, true}) {
    CAPTURE(can_chunk);
    Scheduler scheduler({.max_num_batched_tokens = 16, .can_chunk_prefill = can_chunk}, much_kv());
    for (std::uint64_t id = 1; id <= 3; ++id) scheduler.add(with_source(id, 7), 0.0);

    StepPlan plan = scheduler.schedule(0.0);
    CHECK(shares(plan) == Shares{{1, 0, 1, true}, {2, 0, 1, true}});
    scheduler.update(sample_all(plan));
    plan = scheduler.schedule(0.0);
    CHECK(shares(plan) == Shares{{1, 1, 1, true}, {2, 1, 1, true}, {3, 0, 1, true}});
    scheduler.update(sample_all(plan));
    CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 2, 1, true}, {2, 2, 1, true}, {3, 1, 1, true}});
  }
}

TEST_CASE("Source_BeyondTheBudget_IsTheOnlyNewOneOfItsStep") {
  Scheduler scheduler({.max_num_batched_tokens = 16, .max_prefill_tokens_while_decoding = 4}, much_kv());
  scheduler.add(with_source(1, 3), 0.0);
  scheduler.add(with_source(2, 40), 0.0);
  scheduler.add(with_source(3, 1), 0.0);

  StepPlan plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 0, 1, true}});
  scheduler.update(sample_all(plan));
  plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 1, 1, true}, {2, 0, 1, true}});
  scheduler.update(sample_all(plan));
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 2, 1, true}, {2, 1, 1, true}, {3, 0, 1, true}});
}

TEST_CASE("Source_BeforeALongerPrompt_LeavesItTheRestOfTheBudget") {
  Scheduler scheduler({.max_num_batched_tokens = 8}, much_kv());
  NewSequence first = with_source(1, 5);
  first.prompt.resize(6, 1);
  scheduler.add(first, 0.0);

  StepPlan plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 0, 3, false}});
  scheduler.update(sample_all(plan));
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 3, 3, true}});
}

TEST_CASE("Sources_OfAnAbandonedStepOrAPreemptedSequence_CountAgain") {
  Scheduler scheduler({.max_num_batched_tokens = 16}, much_kv());
  for (std::uint64_t id = 1; id <= 3; ++id) scheduler.add(with_source(id, 7), 0.0);
  scheduler.schedule(0.0);
  scheduler.abandon();

  StepPlan plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 0, 1, true}, {2, 0, 1, true}});
  scheduler.update(sample_all(plan));
  scheduler.preempt(SequenceId{1});
  plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{2, 1, 1, true}, {1, 0, 2, true}});
  scheduler.update(sample_all(plan));
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 2, 1, true}, {2, 2, 1, true}, {3, 0, 1, true}});
}

}  // namespace
}  // namespace genai::sched
