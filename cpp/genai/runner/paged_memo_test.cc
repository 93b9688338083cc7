// Steady decode steps of the paged decoder with and without DecodeMemo.

#include "genai/base/error.h"
#include "genai/runner/test_cold_file.h"
#include "genai/runner/test_paged_models.h"
#include "genai/runner/test_storm.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace genai::runner {
namespace {

std::unique_ptr<ModelRunner> load_without_memo(const std::string& name, const KvMemory& memory = {}) {
  setenv("ONNX_GENAI_DECODE_MEMO", "0", 1);
  std::unique_ptr<ModelRunner> runner = load(name, memory);
  unsetenv("ONNX_GENAI_DECODE_MEMO");
  return runner;
}

/// All logits of a storm, one row after another; each row decides the next token.
std::vector<float> logits_of_storm(ModelRunner& runner, std::uint32_t seed) {
  std::vector<float> logits;
  Storm storm(runner, seed);
  storm.run(200, [&logits](const TestSequence&, std::span<const float> row) {
    logits.insert(logits.end(), row.begin(), row.end());
    return argmax(row);
  });
  CHECK(storm.num_forks > 3);
  CHECK(storm.num_moves > 50);
  CHECK(storm.num_rewinds > 3);
  return logits;
}

bool same_bits(const std::vector<float>& left, const std::vector<float>& right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

/// Three sequences whose prompts have run and that have the blocks for 100 tokens each.
std::vector<TestSequence> decoding(ModelRunner& runner) {
  std::vector<TestSequence> sequences;
  for (int i = 0; i < 3; ++i) {
    sequences.push_back({.id = SequenceId{static_cast<std::uint64_t>(i + 1)},
                         .ids = {5, 17, i, 96, 0},
                         .blocks = blocks_from(static_cast<BlockId>(7 * i), 7)});
  }
  run_step(runner, {{&sequences[0], 5}, {&sequences[1], 5}, {&sequences[2], 5}});
  return sequences;
}

/// One token of each; whether the step was a replay. The tokens are compared with the oracle.
bool decode(ModelRunner& runner, std::vector<TestSequence*> sequences) {
  const std::int64_t before = runner.stats().num_replays;
  std::vector<TestStep> steps;
  for (TestSequence* const sequence : sequences) steps.push_back({sequence, sequence->num_left()});
  run_step(runner, steps);
  return runner.stats().num_replays > before;
}

}  // namespace

TEST_CASE("DecodeMemo_RandomStorm_GivesTheSameBitsAsWithout") {
  const TestFolder folder;
  for (const std::string name : {"paged_checksum", "paged_checksum_all_logits", "paged_random", "paged_random_int8"}) {
    CAPTURE(name);
    const KvMemory memory = memory_for(name, 24, folder.path());
    const std::unique_ptr<ModelRunner> with = load(name, memory);
    const std::unique_ptr<ModelRunner> without = load_without_memo(name, memory);
    if (!with) return;

    const std::vector<float> replayed = logits_of_storm(*with, 41);
    const std::vector<float> anew = logits_of_storm(*without, 41);

    CHECK(same_bits(replayed, anew));
    CHECK(with->stats().num_replays > 2);
    CHECK(without->stats().num_replays == 0);
    CHECK(with->stats().num_runs == without->stats().num_runs);
  }
}

TEST_CASE("DecodeMemo_SteadyDecode_ReplaysAllButNewTableWidths") {
  for (const std::string& name : kChecksumModels) {
    CAPTURE(name);
    const std::unique_ptr<ModelRunner> runner = load(name);
    if (!runner) return;
    std::vector<TestSequence> all = decoding(*runner);

    std::vector<std::int64_t> anew;
    for (int step = 0; step < 60; ++step) {
      const std::int64_t position = all[0].num_computed;
      if (!decode(*runner, {&all[0], &all[1], &all[2]})) anew.push_back(position);
    }

    // The first step of that form, then each one that begins a block.
    std::vector<std::int64_t> expected = {5};
    for (std::int64_t p = runner->info().block_size; p < 65; p += runner->info().block_size) expected.push_back(p);
    CHECK(anew == expected);
  }
}

TEST_CASE("DecodeMemo_SwitchedOff_ReplaysNothing") {
  const std::unique_ptr<ModelRunner> runner = load_without_memo("paged_checksum");
  if (!runner) return;
  std::vector<TestSequence> all = decoding(*runner);

  for (int step = 0; step < 30; ++step) CHECK_FALSE(decode(*runner, {&all[0], &all[1], &all[2]}));
}

TEST_CASE("DecodeMemo_SequencesLeaveAndJoin_ReplaysOnceTheBatchIsSteady") {
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum");
  if (!runner) return;
  std::vector<TestSequence> all = decoding(*runner);
  REQUIRE_FALSE(decode(*runner, {&all[0], &all[1]}));

  CHECK(decode(*runner, {&all[0], &all[1]}));
  CHECK(decode(*runner, {&all[1], &all[0]}));
  CHECK(decode(*runner, {&all[2], &all[0]}));
  CHECK_FALSE(decode(*runner, {&all[0], &all[1], &all[2]}));
  CHECK_FALSE(decode(*runner, {&all[2]}));
  all[2].ids.push_back(4);
  CHECK_FALSE(decode(*runner, {&all[2]}));  // two tokens
  CHECK_FALSE(decode(*runner, {&all[2]}));
  CHECK(decode(*runner, {&all[2]}));
}

TEST_CASE("DecodeMemo_BlocksOfARowChange_AreSeen") {
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum");
  if (!runner) return;
  std::vector<TestSequence> all = decoding(*runner);
  for (int step = 0; step < 20; ++step) decode(*runner, {&all[0], &all[1]});

  // As after a copy-on-write: the first block of the first row lies elsewhere, and what was there is another's.
  const std::vector<KvOp> ops = {copy_op(all[0].blocks[0], 30), copy_op(all[1].blocks[0], all[0].blocks[0])};
  REQUIRE(runner->apply(ops).empty());
  all[0].blocks[0] = 30;

  CHECK(decode(*runner, {&all[0], &all[1]}));
}

TEST_CASE("DecodeMemo_SequenceIsRewound_ReplaysOnlyWhileItsRowHoldsAsManyBlocks") {
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum");
  if (!runner) return;
  std::vector<TestSequence> all = decoding(*runner);
  for (int step = 0; step < 20; ++step) decode(*runner, {&all[0], &all[1]});
  const auto rewind_to = [&all](std::int64_t num_tokens) {
    all[0].num_computed = num_tokens - 1;
    all[0].ids.resize(static_cast<std::size_t>(num_tokens));
  };

  rewind_to(20);
  CHECK(decode(*runner, {&all[0], &all[1]}));
  rewind_to(8);
  CHECK_FALSE(decode(*runner, {&all[0], &all[1]}));
  CHECK(decode(*runner, {&all[0], &all[1]}));
}

TEST_CASE("DecodeMemo_StepFails_TheNextStepsAreRight") {
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum");
  if (!runner) return;
  std::vector<TestSequence> all = decoding(*runner);
  for (int step = 0; step < 20; ++step) decode(*runner, {&all[0], &all[1]});

  const BlockId first = std::exchange(all[0].blocks[0], -1);
  CHECK_THROWS_AS(decode(*runner, {&all[0], &all[1]}), Error);
  all[0].blocks[0] = first;
  const BlockId second = std::exchange(all[0].blocks[1], 1 << 30);
  CHECK_THROWS_AS(decode(*runner, {&all[0], &all[1]}), Error);
  all[0].blocks[1] = second;

  CHECK(decode(*runner, {&all[0], &all[1]}));
}

}  // namespace genai::runner
