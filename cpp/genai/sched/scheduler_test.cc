#include "genai/sched/scheduler.h"

#include "genai/base/error.h"
#include "genai/sched/test_plans.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

namespace genai::sched {
namespace {

/// Prompts of different ids have no prefix in common.
NewSequence sequence(std::uint64_t id, std::size_t prompt_size, std::int64_t max_total, int priority = 0) {
  return {.id = SequenceId{id},
          .prompt = std::vector<TokenId>(prompt_size, static_cast<TokenId>(id)),
          .max_total_tokens = max_total,
          .priority = priority,
          .cache_salt = {}};
}

kv::KvConfig blocks_of_4(std::int64_t num_blocks) {
  return {.block_size = 4, .num_hot_blocks = num_blocks};
}

TEST_CASE("Prompt_LongerThanTheBudget_RunsInChunks") {
  Scheduler scheduler({.max_num_batched_tokens = 8}, blocks_of_4(100));
  scheduler.add(sequence(1, 20, 30), 0.0);

  StepPlan plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 0, 8, false}});
  scheduler.update(sample_all(plan));
  plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 8, 8, false}});
  scheduler.update(sample_all(plan));
  plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 16, 4, true}});
  scheduler.update(sample_all(plan));
  plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 20, 1, true}});
  CHECK(plan.sequences[0].block_table.size() == 6);
}

TEST_CASE("DecodeRows_WithAWaitingPrompt_GoFirstAndBoundThePrefill") {
  Scheduler scheduler({.max_num_batched_tokens = 100, .max_prefill_tokens_while_decoding = 4}, blocks_of_4(100));
  scheduler.add(sequence(1, 3, 30), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));
  scheduler.add(sequence(2, 10, 30), 0.0);

  StepPlan plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 3, 1, true}, {2, 0, 4, false}});
  scheduler.update(sample_all(plan));
  plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 4, 1, true}, {2, 4, 4, false}});
}

TEST_CASE("Prompt_ThatCannotBeChunked_RunsWholeAndOnlyOneBeyondTheBudget") {
  kv::KvConfig kv = blocks_of_4(100);
  kv.shares_blocks = false;
  Scheduler scheduler({.max_num_batched_tokens = 4, .can_chunk_prefill = false}, kv);
  scheduler.add(sequence(1, 9, 30), 0.0);
  scheduler.add(sequence(2, 9, 30), 0.0);

  StepPlan plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 0, 9, true}});
  scheduler.update(sample_all(plan));
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 9, 1, true}, {2, 0, 9, true}});
}

TEST_CASE("Sequences_BeyondMaxNumSeqs_WaitInOrder") {
  Scheduler scheduler({.max_num_seqs = 2}, blocks_of_4(100));
  for (std::uint64_t id = 1; id <= 3; ++id) scheduler.add(sequence(id, 2, 3), 0.0);

  const StepPlan plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{1, 0, 2, true}, {2, 0, 2, true}});
  CHECK(scheduler.num_running() == 2);
  CHECK(scheduler.num_waiting() == 1);
  const auto finished = scheduler.update(sample_all(plan));
  REQUIRE(finished.size() == 2);
  CHECK(finished[0].reason == FinishReason::kLength);
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{3, 0, 2, true}});
}

TEST_CASE("QueueHead_ThatDoesNotFitTheKvMemory_IsNotOvertaken") {
  Scheduler scheduler({}, blocks_of_4(5));
  scheduler.add(sequence(1, 12, 16), 0.0);
  scheduler.add(sequence(2, 12, 16), 0.0);
  scheduler.add(sequence(3, 1, 2), 0.0);

  const StepPlan plan = scheduler.schedule(0.0);

  CHECK(shares(plan) == Shares{{1, 0, 12, true}});
  CHECK(scheduler.num_waiting() == 2);
  scheduler.update(sample_all(plan));
  CHECK(scheduler.remove(SequenceId{3}));
  CHECK(scheduler.remove(SequenceId{1}));
  CHECK_FALSE(scheduler.remove(SequenceId{1}));
  CHECK(scheduler.kv().stats().hot_used == 0);
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{2, 0, 12, true}});
}

TEST_CASE("HigherPriority_WhenAllPlacesAreTaken_PreemptsTheLowestAndLatest") {
  Scheduler scheduler({.max_num_seqs = 2}, blocks_of_4(100));
  scheduler.add(sequence(1, 8, 20), 0.0);
  scheduler.add(sequence(2, 8, 20), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));

  scheduler.add(sequence(3, 5, 6, 1), 100.0);
  StepPlan plan = scheduler.schedule(100.0);

  CHECK(shares(plan) == Shares{{1, 8, 1, true}, {3, 0, 5, true}});
  CHECK(scheduler.stats().num_preemptions == 1);
  CHECK(scheduler.update(sample_all(plan)).size() == 1);
  // It comes back with its token, and finds what it had computed.
  plan = scheduler.schedule(100.0);
  CHECK(shares(plan) == Shares{{1, 9, 1, true}, {2, 8, 1, true}});
}

TEST_CASE("HigherPriority_BehindAnAgedHead_StillPreemptsALowerOne") {
  Scheduler scheduler({.max_num_seqs = 1, .priority_ageing_seconds = 1.0}, blocks_of_4(100));
  scheduler.add(sequence(1, 4, 8), 0.0);
  scheduler.add(sequence(2, 4, 8), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));

  scheduler.add(sequence(3, 4, 5, 3), 5.0);

  CHECK(shares(scheduler.schedule(5.0)) == Shares{{3, 0, 4, true}});
}

TEST_CASE("PreemptedSequence_ItsShareOfTheBudget_GoesToTheOneThatTookItsPlace") {
  Scheduler scheduler({.max_num_seqs = 2, .max_num_batched_tokens = 2}, blocks_of_4(100));
  scheduler.add(sequence(1, 1, 20), 0.0);
  scheduler.add(sequence(2, 1, 20), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));

  scheduler.add(sequence(3, 5, 8, 1), 0.0);

  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 1, 1, true}, {3, 0, 1, false}});
}

TEST_CASE("HigherPriority_BesideALongRunningPrefill_GetsTheBudgetFirst") {
  Scheduler scheduler({.max_num_batched_tokens = 8}, blocks_of_4(100));
  scheduler.add(sequence(1, 100, 120), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));

  scheduler.add(sequence(2, 6, 12, 0), 0.0);
  scheduler.add(sequence(3, 6, 12, 1), 0.0);

  CHECK(shares(scheduler.schedule(0.0)) == Shares{{3, 0, 6, true}, {1, 8, 2, false}});
}

TEST_CASE("Admission_LeavesABlockForEachThatRuns") {
  Scheduler scheduler({}, blocks_of_4(6));
  scheduler.add(sequence(1, 8, 16), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));

  scheduler.add(sequence(2, 12, 16), 0.0);
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 8, 1, true}});
  scheduler.abandon();
  scheduler.remove(SequenceId{2});
  scheduler.add(sequence(3, 8, 16), 0.0);

  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 8, 1, true}, {3, 0, 8, true}});
}

TEST_CASE("HeadWithoutMemory_OnceItsPrefixIsComputedByAnother_SharesItAndStarts") {
  Scheduler scheduler({.max_num_batched_tokens = 8}, blocks_of_4(7));
  scheduler.add(sequence(1, 16, 20), 0.0);
  NewSequence same = sequence(1, 16, 20);
  same.id = SequenceId{2};
  scheduler.update(sample_all(scheduler.schedule(0.0)));
  scheduler.add(same, 0.0);

  scheduler.update(sample_all(scheduler.schedule(0.0)));

  // 12 of its 16 tokens lie in blocks that the first one holds.
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 16, 1, true}, {2, 12, 4, true}});
  CHECK(scheduler.stats().num_preemptions == 0);
}

TEST_CASE("HeadWithoutMemory_WhileNothingChanges_IsNotLookedUpAgain") {
  Scheduler scheduler({}, blocks_of_4(10));
  scheduler.add(sequence(1, 20, 40), 0.0);
  scheduler.add(sequence(2, 24, 40), 0.0);
  for (int i = 0; i < 10; ++i) scheduler.update(sample_all(scheduler.schedule(0.0)));

  // Once while the first prompt was not computed, and once after.
  CHECK(scheduler.kv().stats().prefix_queried_tokens == 20 + 2 * 24);
}

TEST_CASE("SequenceAdmittedThanksToAgeing_WhenThoseItWentBeforeWait_IsNotPreempted") {
  Scheduler scheduler({.max_num_seqs = 1, .priority_ageing_seconds = 1.0}, blocks_of_4(100));
  scheduler.add(sequence(1, 4, 6, 3), 0.0);
  scheduler.add(sequence(2, 4, 8, 0), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));
  scheduler.add(sequence(3, 4, 8, 3), 5.0);
  scheduler.update(sample_all(scheduler.schedule(5.0)));

  CHECK(shares(scheduler.schedule(5.0)) == Shares{{2, 0, 4, true}});
  scheduler.abandon();
  CHECK(shares(scheduler.schedule(6.0)) == Shares{{2, 0, 4, true}});
  CHECK(scheduler.stats().num_preemptions == 0);
}

TEST_CASE("HigherPriority_WhenLowerOnesHoldTooLittle_PreemptsNobody") {
  Scheduler scheduler({}, blocks_of_4(10));
  scheduler.add(sequence(1, 24, 28, 2), 0.0);
  scheduler.add(sequence(2, 4, 8, 0), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));

  scheduler.add(sequence(3, 28, 32, 1), 0.0);

  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 24, 1, true}, {2, 4, 1, true}});
}

TEST_CASE("DecodeRow_WithoutABlock_PreemptsTheLatestOfTheLowestPriority") {
  Scheduler scheduler({}, blocks_of_4(8));
  scheduler.add(sequence(1, 7, 20), 0.0);
  scheduler.add(sequence(2, 7, 20), 0.0);
  while (scheduler.stats().num_preemptions == 0) {
    scheduler.update(sample_all(scheduler.schedule(0.0)));
  }

  CHECK(scheduler.num_waiting() == 1);
  CHECK(scheduler.tokens(SequenceId{1}).size() == 18);
  CHECK(scheduler.tokens(SequenceId{2}).size() == 17);
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 17, 1, true}});
}

TEST_CASE("PromptOfAnEarlierSequence_FollowedUp_IsFoundInTheCache") {
  Scheduler scheduler({}, blocks_of_4(100));
  scheduler.add(sequence(1, 10, 12), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));
  CHECK(scheduler.update(sample_all(scheduler.schedule(0.0))).size() == 1);

  NewSequence next = sequence(1, 10, 20);
  next.id = SequenceId{2};
  next.prompt.insert(next.prompt.end(), {1, 1, 5});
  scheduler.add(next, 0.0);

  // 11 positions were written, so two whole blocks.
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{2, 8, 5, true}});
  CHECK(scheduler.num_cached_tokens(SequenceId{2}) == 8);
}

TEST_CASE("SequenceThatFailed_ItsUnfinishedStep_IsNotFoundInTheCache") {
  Scheduler scheduler({}, blocks_of_4(100));
  scheduler.add(sequence(1, 10, 12), 0.0);
  scheduler.schedule(0.0);
  const auto finished = scheduler.update({{{SequenceId{1}, std::nullopt, FinishReason::kError}}});
  REQUIRE(finished.size() == 1);

  NewSequence again = sequence(1, 10, 12);
  again.id = SequenceId{2};
  scheduler.add(again, 0.0);

  CHECK(shares(scheduler.schedule(0.0)) == Shares{{2, 0, 10, true}});
}

TEST_CASE("Fork_WhileThePromptsPlanIsOpen_GetsItsFirstTokenFromThatStep") {
  Scheduler scheduler({}, blocks_of_4(100));
  scheduler.add(sequence(1, 5, 8), 0.0);
  const StepPlan plan = scheduler.schedule(0.0);

  NewSequence child = sequence(1, 5, 8);
  child.id = SequenceId{2};
  CHECK(scheduler.fork(SequenceId{1}, child, 0.0));
  StepResult result = sample_all(plan);
  result.sequences.push_back({SequenceId{2}, 9, std::nullopt});
  CHECK(scheduler.update(result).empty());

  CHECK(scheduler.kv().stats().hot_used == 2);
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 5, 1, true}, {2, 5, 1, true}});
  CHECK(scheduler.tokens(SequenceId{2}).back() == 9);
  CHECK(scheduler.kv().stats().hot_used == 3);
  CHECK(scheduler.kv().stats().copied_blocks == 1);
}

TEST_CASE("Fork_WhoseStepIsGivenUp_ComputesItsLastTokenLater") {
  Scheduler scheduler({}, blocks_of_4(100));
  scheduler.add(sequence(1, 5, 8), 0.0);
  scheduler.schedule(0.0);
  NewSequence child = sequence(1, 5, 8);
  child.id = SequenceId{2};
  CHECK(scheduler.fork(SequenceId{1}, child, 0.0));

  scheduler.abandon();

  CHECK(scheduler.kv().length(SequenceId{1}) == 0);
  CHECK(scheduler.kv().length(SequenceId{2}) == 4);
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{2, 4, 1, true}, {1, 0, 5, true}});
}

TEST_CASE("Fork_BetweenSteps_ComputesWhatItsParentDoesNotHave") {
  Scheduler scheduler({}, blocks_of_4(100));
  scheduler.add(sequence(1, 9, 20), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));

  NewSequence child = sequence(1, 9, 20);
  child.id = SequenceId{2};
  child.prompt.insert(child.prompt.end(), {1, 2, 3});
  CHECK(scheduler.fork(SequenceId{1}, child, 0.0));
  NewSequence same = sequence(1, 9, 20);
  same.id = SequenceId{3};
  CHECK(scheduler.fork(SequenceId{1}, same, 0.0));

  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 9, 1, true}, {3, 8, 1, true}, {2, 9, 3, true}});
}

TEST_CASE("EncoderInputs_OfASequence_AreInItsPlansAndThoseOfItsForks") {
  Scheduler scheduler({.max_num_seqs = 2}, blocks_of_4(100));
  const auto inputs = std::make_shared<EncoderInputs>();
  NewSequence parent = sequence(1, 5, 20);
  parent.encoder_inputs = inputs;
  scheduler.add(parent, 0.0);
  const StepPlan plan = scheduler.schedule(0.0);
  CHECK(plan.sequences[0].encoder_inputs == inputs.get());
  scheduler.update(sample_all(plan));

  for (const std::uint64_t id : {2, 3}) {  // the second one finds no place and waits
    NewSequence child = sequence(1, 5, 20);
    child.id = SequenceId{id};
    CHECK(scheduler.fork(SequenceId{1}, child, 0.0) == (id == 2));
  }
  for (const ScheduledSequence& each : scheduler.schedule(0.0).sequences) CHECK(each.encoder_inputs == inputs.get());
  scheduler.abandon();
  scheduler.remove(SequenceId{1});
  scheduler.remove(SequenceId{2});
  const StepPlan last = scheduler.schedule(0.0);
  REQUIRE(shares(last) == Shares{{3, 4, 1, true}});
  CHECK(last.sequences[0].encoder_inputs == inputs.get());
}

TEST_CASE("Fork_WithoutAPlace_QueuesTheChildAtItsParentsPlaceInLine") {
  Scheduler scheduler({.max_num_seqs = 1}, blocks_of_4(100));
  scheduler.add(sequence(1, 5, 6), 0.0);
  scheduler.add(sequence(3, 5, 6), 0.0);
  const StepPlan plan = scheduler.schedule(0.0);

  NewSequence child = sequence(1, 5, 6);
  child.id = SequenceId{2};
  CHECK_FALSE(scheduler.fork(SequenceId{1}, child, 0.0));
  CHECK(scheduler.update(sample_all(plan)).size() == 1);

  CHECK(shares(scheduler.schedule(0.0)) == Shares{{2, 4, 1, true}});
}

TEST_CASE("IdleSequence_UntilItGetsAToken_IsInNoPlanAndTakesNoPlace") {
  Scheduler scheduler({.max_num_seqs = 1}, blocks_of_4(100));
  scheduler.add(sequence(1, 5, 8), 0.0);
  scheduler.add(sequence(2, 5, 6), 0.0);
  scheduler.schedule(0.0);
  scheduler.update({{{SequenceId{1}, std::nullopt, std::nullopt}}});

  CHECK(scheduler.num_running() == 0);
  const StepPlan plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{2, 0, 5, true}});
  scheduler.update(sample_all(plan));
  scheduler.append(SequenceId{1}, 4);
  CHECK_THROWS_AS(scheduler.append(SequenceId{1}, 4), Error);
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 5, 1, true}});
}

TEST_CASE("IdleSequence_WhenMemoryIsShort_IsPreemptedFirstAndWaitsForItsToken") {
  Scheduler scheduler({}, blocks_of_4(4));
  scheduler.add(sequence(1, 8, 12), 0.0);
  scheduler.schedule(0.0);
  scheduler.update({{{SequenceId{1}, std::nullopt, std::nullopt}}});
  scheduler.add(sequence(2, 12, 14), 0.0);

  const StepPlan plan = scheduler.schedule(0.0);
  CHECK(shares(plan) == Shares{{2, 0, 12, true}});
  scheduler.update(sample_all(plan));
  CHECK(scheduler.num_waiting() == 0);
  CHECK(scheduler.update(sample_all(scheduler.schedule(0.0))).size() == 1);
  CHECK(scheduler.schedule(0.0).sequences.empty());

  scheduler.append(SequenceId{1}, 4);
  CHECK(shares(scheduler.schedule(0.0)).front().id == 1);
}

TEST_CASE("DecodeRow_WithoutABlock_TakesThoseOfAnIdleSequence") {
  Scheduler scheduler({}, blocks_of_4(7));
  scheduler.add(sequence(1, 8, 12, 5), 0.0);
  scheduler.schedule(0.0);
  scheduler.update({{{SequenceId{1}, std::nullopt, std::nullopt}}});
  scheduler.add(sequence(2, 7, 20), 0.0);
  scheduler.add(sequence(3, 7, 20), 0.0);
  while (scheduler.stats().num_preemptions == 0) scheduler.update(sample_all(scheduler.schedule(0.0)));

  CHECK(scheduler.num_running() == 2);
  CHECK_FALSE(scheduler.kv().contains(SequenceId{1}));
}

TEST_CASE("FailedMove_OfABlockThatAPlanNeeds_LetsItsSequenceStartAgain") {
  Scheduler scheduler({}, {.block_size = 4, .num_hot_blocks = 4, .num_warm_blocks = 4});
  scheduler.add(sequence(1, 8, 9), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));
  scheduler.add(sequence(2, 15, 16), 0.0);
  scheduler.update(sample_all(scheduler.schedule(0.0)));
  scheduler.take_kv_ops();
  NewSequence again = sequence(1, 8, 16);
  again.id = SequenceId{3};
  scheduler.add(again, 0.0);
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{3, 4, 4, true}});

  for (const KvOp& op : scheduler.take_kv_ops()) {
    if (op.kind == KvOp::Kind::kMoveBlock && op.to.tier == KvTier::kHot) scheduler.kv_failed(op);
  }

  CHECK(shares(scheduler.schedule(0.0)) == Shares{{3, 0, 8, true}});
  CHECK(scheduler.stats().num_preemptions == 0);
}

TEST_CASE("SequenceRemovedDuringAStep_ItsResult_IsIgnoredAndItsBlocksAreFreedAfterIt") {
  Scheduler scheduler({}, blocks_of_4(100));
  scheduler.add(sequence(1, 5, 8), 0.0);
  const StepPlan plan = scheduler.schedule(0.0);
  const StepResult result = sample_all(plan);

  CHECK(scheduler.remove(SequenceId{1}));
  CHECK(scheduler.kv().stats().hot_used == 2);

  CHECK(scheduler.update(result).empty());
  CHECK(scheduler.kv().stats().hot_used == 0);
  CHECK(scheduler.schedule(0.0).sequences.empty());
}

TEST_CASE("AbandonedPlan_IsPlannedAgain") {
  Scheduler scheduler({}, blocks_of_4(100));
  scheduler.add(sequence(1, 5, 8), 0.0);
  const std::vector<Share> first = shares(scheduler.schedule(0.0));
  CHECK_THROWS_AS(scheduler.schedule(0.0), Error);

  scheduler.abandon();

  CHECK(shares(scheduler.schedule(0.0)) == first);
}

TEST_CASE("PreemptedByHand_Sequence_ReturnsWithWhatIsInTheCache") {
  Scheduler scheduler({}, blocks_of_4(100));
  scheduler.add(sequence(1, 9, 20), 0.0);
  CHECK_FALSE(scheduler.preempt(SequenceId{1}));
  const StepPlan plan = scheduler.schedule(0.0);
  CHECK_THROWS_AS(scheduler.preempt(SequenceId{1}), Error);
  scheduler.update(sample_all(plan));

  CHECK(scheduler.preempt(SequenceId{1}));

  CHECK(scheduler.kv().stats().hot_used == 0);
  CHECK(shares(scheduler.schedule(0.0)) == Shares{{1, 8, 2, true}});
  CHECK(scheduler.num_cached_tokens(SequenceId{1}) == 0);
}

TEST_CASE("Config_OutOfRange_IsRefusedWithItsNameAndValue") {
  const auto message_of = [](const SchedulerConfig& config) {
    try {
      Scheduler scheduler(config, blocks_of_4(1));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string();
  };

  CHECK(message_of({.max_num_seqs = 0}) == "max_num_seqs is 0; it must be >= 1");
  CHECK(message_of({.max_num_batched_tokens = -3}) == "max_num_batched_tokens is -3; it must be >= 1");
  CHECK(message_of({.max_prefill_tokens_while_decoding = 0}) ==
        "max_prefill_tokens_while_decoding is 0; it must be >= 1");
  CHECK(message_of({.priority_ageing_seconds = -1.0}).starts_with("priority_ageing_seconds is -1"));
}

}  // namespace
}  // namespace genai::sched
