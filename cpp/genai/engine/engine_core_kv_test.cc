// KV seen from requests: prefix cache, preemption, tiers, faults, export and import.

#include "genai/engine/test_bench.h"

#include <doctest/doctest.h>

#include <vector>

namespace genai::engine {
namespace {

std::vector<TokenId> counting(TokenId from, TokenId count) {
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < count; ++i) tokens.push_back((from + i) % 31);
  return tokens;
}

TEST_CASE("Prefix_OfAnEarlierRequest_IsFoundAndCounted") {
  Bench bench({}, FakePagedSize{.block_size = 4});
  bench.add(1, greedy(counting(1, 10), 4));
  bench.run();
  Request again = greedy(counting(1, 10), 4);
  Request other = again;
  other.cache_salt = "another user";
  bench.add(2, std::move(again));
  bench.add(3, std::move(other));

  bench.run();

  CHECK(bench.last[1].usage.cached_tokens == 0);
  CHECK(bench.last[2].usage.cached_tokens == 8);
  CHECK(bench.last[3].usage.cached_tokens == 0);
  for (std::uint64_t id = 1; id <= 3; ++id) CHECK(bench.out[{id, 0}].tokens == fake_continuation(counting(1, 10), 4));
  CHECK(bench.core.metrics().num_prompt_tokens == 10 + 2 + 10);
}

TEST_CASE("PrefixCache_Off_FindsNothing") {
  EngineOptions options;
  options.prefix_cache = false;
  Bench bench(options, FakePagedSize{.block_size = 4});
  for (std::uint64_t id = 1; id <= 2; ++id) {
    bench.add(id, greedy(counting(1, 10), 4));
    bench.run();
  }

  CHECK(bench.last[2].usage.cached_tokens == 0);
  CHECK(bench.core.metrics().kv_hot_cached_blocks == 0);
}

TEST_CASE("Preempt_AtEachStep_ChangesNoToken") {
  std::vector<std::int64_t> num_recomputed;
  for (const bool clears : {false, true}) {
    Bench bench({}, FakePagedSize{.block_size = 4});
    bench.add(1, greedy(counting(3, 9), 12));
    while (bench.core.has_work()) {
      bench.step();
      bench.core.preempt(RequestId{1});
      if (clears) bench.core.clear_prefix_cache();
    }

    CHECK(bench.out[{1, 0}].tokens == fake_continuation(counting(3, 9), 12));
    CHECK(bench.core.metrics().num_preemptions == 11);
    num_recomputed.push_back(bench.core.metrics().num_recomputed_tokens);
    CHECK_FALSE(bench.core.preempt(RequestId{1}));
    bench.check_idle();
  }
  CHECK(num_recomputed[0] <= 11 * 3);                                  // what stands in the last, incomplete block
  CHECK(num_recomputed[1] == 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10);  // all generated before the newest
}

TEST_CASE("Choices_OfOnePrompt_ShareItsBlocks") {
  Bench bench({}, FakePagedSize{.block_size = 4, .num_hot_blocks = 40});
  Request request = greedy(counting(1, 32), 4);
  request.params.n = 4;
  bench.add(1, std::move(request));
  bench.step();

  CHECK(bench.core.metrics().kv_hot_used_blocks <= 8 + 4);
  bench.run();
  for (int choice = 0; choice < 4; ++choice) {
    CHECK(bench.out[{1, choice}].tokens == fake_continuation(counting(1, 32), 4));
  }
  CHECK(bench.core.metrics().num_prompt_tokens == 32);
}

TEST_CASE("ApplyThatThrowsOnce_LosesKvAndNoRequest") {
  for (int round = 0; round < 2; ++round) {
    Bench paged({}, FakePagedSize{.block_size = 4, .num_hot_blocks = 8});
    Bench contiguous({}, FakeSize{.block_size = 4, .num_blocks = 8});
    for (Bench* bench : {&paged, &contiguous}) {
      for (std::uint64_t id = 1; id <= 4; ++id) {
        Request request = greedy(counting(static_cast<TokenId>(id), 6), 10);
        request.params.n = 2;
        bench->add(id, std::move(request));
      }
      bench->step();
      bench->faults->throw_in_apply = 1 + round;
      bench->run();
      for (std::uint64_t id = 1; id <= 4; ++id) {
        for (int choice = 0; choice < 2; ++choice) {
          CHECK(bench->out[{id, choice}].tokens == fake_continuation(counting(static_cast<TokenId>(id), 6), 10));
        }
      }
    }
    CHECK(contiguous.core.last_kv_failure() == "fake failure of apply");
  }
}

TEST_CASE("ApplyThatAlwaysThrows_EndsEachRequestWithAnError") {
  Bench bench({}, FakeSize{.block_size = 4, .num_blocks = 8});
  bench.add(1, greedy(counting(1, 6), 10));
  bench.add(2, greedy(counting(2, 6), 20));
  bench.faults->throw_in_apply = 1000;
  for (int i = 0; i < 1000 && bench.core.has_work(); ++i) {
    bench.step();
    bench.core.preempt(RequestId{2});
  }

  REQUIRE_FALSE(bench.core.has_work());
  CHECK(bench.num_last[2] == 1);
  REQUIRE(bench.out[{2, 0}].error);
  CHECK(bench.out[{2, 0}].error->code() == ErrorCode::kBackend);
}

TEST_CASE("FailedMoves_OfEveryKind_AreCountedAndLoseNoRequest") {
  Bench bench({}, FakePagedSize{.block_size = 4, .num_hot_blocks = 8, .num_cold_blocks = 16});
  bench.faults->fail_moves_in_1000 = 1000;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    bench.add(id, greedy(counting(static_cast<TokenId>(id), 12), 8));
    bench.run();
    CHECK(bench.out[{id, 0}].tokens == fake_continuation(counting(static_cast<TokenId>(id), 12), 8));
  }

  CHECK(bench.core.metrics().kv_failed_moves > 0);
  CHECK(bench.core.last_kv_failure() == "fake failure of a move");
}

TEST_CASE("ExportedKv_ImportedElsewhere_IsFoundThere") {
  Bench from({}, FakePagedSize{.block_size = 4});
  from.add(1, greedy(counting(1, 11), 6));
  from.run();
  std::vector<TokenId> session = counting(1, 11);
  for (const TokenId token : fake_continuation(session, 6)) session.push_back(token);

  const KvBytes kv = from.core.export_kv(session, "");
  CHECK(kv.num_tokens == 16);
  CHECK(from.core.export_kv(session, "other").num_tokens == 0);
  CHECK(from.core.export_kv(counting(2, 11), "").num_tokens == 0);

  Bench to({}, FakePagedSize{.block_size = 4, .num_hot_blocks = 9});
  CHECK(to.core.import_kv(session, "", kv.bytes) == 16);
  CHECK(to.core.import_kv(session, "", kv.bytes) == 16);
  to.add(1, greedy(session, 5));
  to.run();

  CHECK(to.last[1].usage.cached_tokens == 16);
  CHECK(to.out[{1, 0}].tokens == fake_continuation(session, 5));
}

TEST_CASE("ImportedKv_LargerThanTheMemory_IsTakenInPart") {
  Bench from({}, FakePagedSize{.block_size = 4});
  from.add(1, greedy(counting(1, 80), 1));
  from.run();
  const KvBytes kv = from.core.export_kv(counting(1, 80), "");
  Bench to({}, FakePagedSize{.block_size = 4, .num_hot_blocks = 9, .num_warm_blocks = 3});

  const std::int64_t taken = to.core.import_kv(counting(1, 80), "", kv.bytes);

  CHECK(taken >= 9 * 4);
  CHECK(taken <= 12 * 4);
  to.core.kv().check_invariants();
  to.add(1, greedy(counting(1, 30), 3));
  to.run();
  CHECK(to.last[1].usage.cached_tokens == 28);
  CHECK(to.out[{1, 0}].tokens == fake_continuation(counting(1, 30), 3));
}

TEST_CASE("ImportedKv_OfTheWrongSizeOrWithoutBlocks_IsRefused") {
  Bench paged({}, FakePagedSize{.block_size = 4});
  const std::vector<std::byte> bytes(100);
  CHECK_THROWS_WITH_AS(paged.core.import_kv(counting(1, 9), "", bytes), doctest::Contains("100 bytes; allowed: 64"),
                       Error);
  Bench contiguous;
  CHECK(contiguous.core.export_kv(counting(1, 9), "").num_tokens == 0);
  CHECK(contiguous.core.import_kv(counting(1, 9), "", {}) == 0);
  CHECK_THROWS_WITH_AS(contiguous.core.import_kv(counting(1, 9), "", bytes), doctest::Contains("keeps no KV in blocks"),
                       Error);
}

TEST_CASE("ImportedKv_WhenRoomCannotBeMade_IsNotFound") {
  Bench from({}, FakePagedSize{.block_size = 4});
  from.add(1, greedy(counting(1, 24), 1));
  from.run();
  const KvBytes kv = from.core.export_kv(counting(1, 24), "");
  Bench to({}, FakePagedSize{.block_size = 4, .num_hot_blocks = 8, .num_cold_blocks = 8});
  to.add(1, greedy(counting(9, 28), 2));
  to.run();

  to.faults->throw_in_apply = 1;
  CHECK_THROWS_WITH_AS(to.core.import_kv(counting(1, 24), "", kv.bytes), doctest::Contains("none of it is used"),
                       Error);
  to.faults->throw_in_apply = 0;
  CHECK(to.core.export_kv(counting(1, 24), "").num_tokens == 0);
  to.core.kv().check_invariants();
  to.add(2, greedy(counting(1, 24), 3));
  to.run();

  CHECK(to.last[2].usage.cached_tokens == 0);
  CHECK(to.out[{2, 0}].tokens == fake_continuation(counting(1, 24), 3));
}

TEST_CASE("ClearedPrefixCache_LeavesNothingToFind") {
  Bench bench({}, FakePagedSize{.block_size = 4});
  bench.add(1, greedy(counting(1, 10), 4));
  bench.run();

  bench.core.clear_prefix_cache();

  CHECK(bench.core.metrics().kv_hot_cached_blocks == 0);
  CHECK(bench.core.export_kv(counting(1, 10), "").num_tokens == 0);
}

}  // namespace
}  // namespace genai::engine
