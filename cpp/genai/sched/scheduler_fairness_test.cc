#include "genai/sched/virtual_engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace genai::sched {
namespace {

Job job(std::size_t num_prompt, std::int64_t num_new, TokenId first = 1) {
  Job out;
  for (std::size_t i = 0; i < num_prompt; ++i) out.tokens.push_back((first + static_cast<TokenId>(i * i)) % 11);
  out.tokens[0] = first;
  out.max_total = static_cast<std::int64_t>(num_prompt) + num_new;
  return out;
}

kv::KvConfig blocks(std::int64_t num_blocks) {
  return {.block_size = 4, .num_hot_blocks = num_blocks};
}

TEST_CASE("HighSubmittedAfterLow_WithOnePlace_FinishesFirstAndLowResumesUnchanged") {
  VirtualEngine engine({.max_num_seqs = 1}, blocks(100));
  const SequenceId low = engine.submit(job(10, 20));
  for (int i = 0; i < 8; ++i) engine.step();

  const SequenceId high = engine.submit(job(10, 20, 2), 1);
  engine.run_all(100);

  CHECK(engine.jobs.at(high).finish_time == 28.0);
  CHECK(engine.jobs.at(low).finish_time > engine.jobs.at(high).finish_time);
  CHECK(engine.scheduler.stats().num_preemptions == 1);
  CHECK_NOTHROW(engine.check_end());
}

TEST_CASE("HighSubmittedAfterLow_WithoutMemoryForBoth_FinishesFirst") {
  VirtualEngine engine({}, blocks(10));
  const SequenceId low = engine.submit(job(24, 16));
  for (int i = 0; i < 4; ++i) engine.step();

  const SequenceId high = engine.submit(job(24, 16, 2), 1);
  engine.run_all(100);

  CHECK(engine.jobs.at(high).finish_time < engine.jobs.at(low).finish_time);
  CHECK_NOTHROW(engine.check_end());
}

TEST_CASE("EqualSequences_WhateverTheMemory_FinishInOrderOfArrival") {
  for (const std::int64_t num_blocks : {12, 20, 40, 1000}) {
    CAPTURE(num_blocks);
    VirtualEngine engine({.max_num_seqs = 5, .max_num_batched_tokens = 16}, blocks(num_blocks));
    for (TokenId i = 0; i < 40; ++i) engine.submit(job(13, 25, i));

    engine.run_all(10'000);

    double last = 0.0;
    for (std::uint64_t id = 1; id <= 40; ++id) {
      const Job& one = engine.jobs.at(SequenceId{id});
      CHECK(one.finish_time >= last);
      last = one.finish_time;
    }
    CHECK_NOTHROW(engine.check_end());
  }
}

TEST_CASE("SteadyStreamOfHighPriority_ALowOne_FinishesWithinTheAgeingBound") {
  // One place, a job takes 6 steps of 1 s, and high ones arrive every 6 s: without ageing, low would never run.
  constexpr double kAgeing = 10.0;
  constexpr int kDistance = 3;
  VirtualEngine engine({.max_num_seqs = 1, .priority_ageing_seconds = kAgeing}, blocks(100));
  SequenceId low{};
  for (int i = 0; i < 300 && (low.value == 0 || !engine.jobs.at(low).reason); ++i) {
    if (i % 6 == 0) engine.submit(job(5, 6, 2), kDistance);
    if (i == 3) low = engine.submit(job(5, 6));
    engine.step();
  }

  // Those that arrive more than kAgeing * kDistance after it come after it; one may be running, and it runs itself.
  REQUIRE(engine.jobs.at(low).reason);
  CHECK(engine.jobs.at(low).finish_time <= 3.0 + kAgeing * kDistance + 6.0 + 6.0);
}

TEST_CASE("OverloadOfHighPriority_WithLittleMemory_StillLetsLowOnesFinish") {
  VirtualEngine engine({.max_num_seqs = 4, .priority_ageing_seconds = 2.0}, blocks(16));
  std::vector<SequenceId> low;
  for (int i = 0; i < 400; ++i) {
    if (i < 6) low.push_back(engine.submit(job(9, 20, static_cast<TokenId>(i))));
    if (i % 3 == 0) engine.submit(job(9, 12, static_cast<TokenId>(i)), 5);
    engine.step();
  }

  for (const SequenceId id : low) CHECK(engine.jobs.at(id).reason == FinishReason::kLength);
  engine.run_all(10'000);
  CHECK_NOTHROW(engine.check_end());
}

TEST_CASE("WithoutAgeing_HighOnes_AlwaysGoFirst") {
  VirtualEngine engine({.max_num_seqs = 1, .priority_ageing_seconds = 0.0}, blocks(100));
  const SequenceId low = engine.submit(job(5, 6));
  for (int i = 0; i < 300; ++i) {
    if (i % 6 == 0) engine.submit(job(5, 6, 2), 1);
    engine.step();
  }

  CHECK_FALSE(engine.jobs.at(low).reason);
}

TEST_CASE("LongPrompt_BesideRunningAnswers_DelaysNone") {
  VirtualEngine engine({.max_num_batched_tokens = 64, .max_prefill_tokens_while_decoding = 8}, blocks(1000));
  std::vector<SequenceId> answers;
  for (TokenId i = 0; i < 6; ++i) answers.push_back(engine.submit(job(3, 100, i)));
  engine.step();
  engine.submit(job(400, 2, 7));

  for (int i = 0; i < 50; ++i) {
    const std::int64_t num_tokens = engine.step();
    CHECK(num_tokens == 6 + 8);
    for (const SequenceId id : answers) CHECK(std::ssize(engine.jobs.at(id).tokens) == 3 + 2 + i);
  }
}

TEST_CASE("ShortPrompt_BehindALongOne_WaitsNoLongerThanItsPrefill") {
  VirtualEngine engine({.max_num_batched_tokens = 16}, blocks(1000));
  engine.submit(job(400, 50));
  const SequenceId brief = engine.submit(job(4, 50, 2));

  for (int i = 0; i < 26; ++i) engine.step();

  CHECK(engine.jobs.at(brief).first_token_time <= 26.0);
}

TEST_CASE("EnoughMemory_ForAll_MeansNoPreemption") {
  VirtualEngine engine({.max_num_seqs = 16}, blocks(16 * 13));
  for (TokenId i = 0; i < 64; ++i) engine.submit(job(20, 28, i));

  engine.run_all(10'000);

  CHECK(engine.scheduler.stats().num_preemptions == 0);
  CHECK_NOTHROW(engine.check_end());
}

TEST_CASE("ManySequences_EachNearlyAsLargeAsTheMemory_AllFinish") {
  for (const bool cache : {true, false}) {
    for (const double ageing : {0.0, 0.1, 10.0}) {
      CAPTURE(cache);
      CAPTURE(ageing);
      kv::KvConfig kv = blocks(8);
      kv.prefix_cache = cache;
      VirtualEngine engine({.max_num_seqs = 8, .max_num_batched_tokens = 16, .priority_ageing_seconds = ageing}, kv);
      for (TokenId i = 0; i < 60; ++i) engine.submit(job(1 + static_cast<std::size_t>(i % 9), 22, i), i % 3);

      // Alone, they would take 60 * 23 steps; a preempted one computes its tokens again, 16 a step.
      CHECK_NOTHROW(engine.run_all(60 * 23 * 2));

      CHECK_NOTHROW(engine.check_end());
    }
  }
}

TEST_CASE("Tokens_ForEveryChunkSize_AreThoseOfARunAlone") {
  for (const std::int64_t chunk : {1, 7, 16, 64}) {
    for (const bool shares : {true, false}) {
      CAPTURE(chunk);
      CAPTURE(shares);
      kv::KvConfig kv = blocks(24);
      kv.shares_blocks = shares;
      VirtualEngine engine({.max_num_seqs = 6, .max_num_batched_tokens = chunk}, kv);
      for (TokenId i = 0; i < 20; ++i) engine.submit(job(static_cast<std::size_t>(1 + 3 * i), 20, i % 4), i % 2);

      CHECK_NOTHROW(engine.run_all(20'000));

      CHECK_NOTHROW(engine.check_end());
    }
  }
}

}  // namespace
}  // namespace genai::sched
