#include "genai/sched/virtual_engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace genai::sched {
namespace {

std::vector<TokenId> random_prompt(std::mt19937_64& random, std::size_t max_size) {
  std::vector<TokenId> prompt(1 + random() % max_size);
  // Few beginnings, so that prefixes are shared.
  std::uint64_t pick = random() % 4;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (random() % 40 == 0) pick = random() % 1000;
    prompt[i] = static_cast<TokenId>((pick * 31 + i * 7) % 11);
  }
  return prompt;
}

template <typename T>
T pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
}

struct Storm {
  SchedulerConfig scheduler;
  kv::KvConfig kv;
  std::int64_t longest = 0;  ///< tokens of a sequence
};

Storm random_storm(std::mt19937_64& random) {
  Storm storm;
  storm.kv.block_size = pick(random, {1, 4, 16});
  storm.kv.num_hot_blocks = pick<std::int64_t>(random, {8, 20, 60}) * 16 / storm.kv.block_size;
  storm.kv.prefix_cache = pick(random, {true, true, false});
  storm.kv.shares_blocks = pick(random, {true, true, true, false});
  if (storm.kv.shares_blocks) {
    storm.kv.num_warm_blocks = pick<std::int64_t>(random, {0, 10, 50});
    storm.kv.num_cold_blocks = pick<std::int64_t>(random, {0, 10, 50});
  }
  storm.longest = std::min<std::int64_t>(storm.kv.num_hot_blocks * storm.kv.block_size, 160);
  storm.scheduler.max_num_seqs = pick(random, {1, 3, 8, 64});
  storm.scheduler.max_num_batched_tokens = pick<std::int64_t>(random, {1, 7, 16, 64, 256});
  storm.scheduler.max_prefill_tokens_while_decoding = pick<std::int64_t>(random, {1, 7, 16, 64});
  storm.scheduler.can_chunk_prefill = storm.kv.shares_blocks || pick(random, {true, false});
  storm.scheduler.priority_ageing_seconds = pick(random, {0.0, 0.5, 10.0, 1000.0});
  return storm;
}

/// Something that happens between two steps to a random sequence.
void disturb(VirtualEngine& engine, std::size_t num_jobs) {
  const SequenceId id{1 + engine.random() % num_jobs};
  const auto found = engine.jobs.find(id);
  if (found == engine.jobs.end() || found->second.reason) return;
  switch (engine.random() % 4) {
    case 0:
      engine.remove(id);
      break;
    case 1:
      engine.scheduler.preempt(id);
      break;
    default: {
      const Job& job = found->second;
      const std::vector<TokenId> more = random_prompt(engine.random, 5);
      const std::size_t size = 1 + engine.random() % job.tokens.size();
      if (static_cast<std::int64_t>(size + more.size()) < job.max_total) engine.fork(id, size, more);
      break;
    }
  }
}

void run_storm(std::uint64_t seed, std::size_t num_jobs, bool disturbed) {
  std::mt19937_64 random(seed);
  const Storm storm = random_storm(random);
  VirtualEngine engine(storm.scheduler, storm.kv, seed);
  engine.seconds_per_step = 0.02;
  if (disturbed) {
    engine.abandon_chance = 0.02;
    engine.error_chance = 0.001;
    engine.fork_chance = 0.01;
    engine.idle_chance = 0.02;
    engine.remove_chance = 0.002;
    engine.bad_move_chance = 0.01;
  }
  std::size_t submitted = 0;
  std::size_t steps = 0;
  while (submitted < num_jobs || engine.num_unfinished() > 0) {
    if (submitted < num_jobs && (engine.num_unfinished() == 0 || random() % 4 == 0)) {
      for (std::size_t burst = 1 + random() % 8; burst > 0 && submitted < num_jobs; --burst, ++submitted) {
        Job job;
        job.tokens = random_prompt(random, static_cast<std::size_t>(storm.longest) / (random() % 2 == 0 ? 1 : 4) - 1);
        const std::int64_t room = storm.longest - std::ssize(job.tokens);
        job.max_total =
            std::ssize(job.tokens) + 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(room));
        job.seed = random() % 3;
        job.salt = random() % 5 == 0 ? "other" : "";
        if (random() % 3 == 0) job.stop_at = job.tokens.size() + 1 + random() % 20;
        engine.submit(std::move(job), static_cast<int>(random() % 3));
      }
    }
    engine.step();
    engine.wake_idle(0.3);
    if (disturbed && random() % 16 == 0) disturb(engine, submitted);
    if (++steps % 256 == 0) engine.scheduler.kv().check_invariants();
    check(steps < 4'000'000, "a storm does not end");
  }
  engine.check_end();
}

TEST_CASE("Storm_OfRandomRequests_EndsWithTheTokensOfRunsAlone") {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    CAPTURE(seed);
    REQUIRE_NOTHROW(run_storm(seed, 150, false));
  }
}

TEST_CASE("Storm_WithForksRemovalsFailuresAndPreemptions_EndsWithTheTokensOfRunsAlone") {
  for (std::uint64_t seed = 100; seed < 148; ++seed) {
    CAPTURE(seed);
    REQUIRE_NOTHROW(run_storm(seed, 150, true));
  }
}

TEST_CASE("Storm_OfTwoThousandRequests_EndsWithEveryBlockFree") {
  for (std::uint64_t seed = 200; seed < 205; ++seed) {
    CAPTURE(seed);
    REQUIRE_NOTHROW(run_storm(seed, 2000, true));
  }
}

}  // namespace
}  // namespace genai::sched
