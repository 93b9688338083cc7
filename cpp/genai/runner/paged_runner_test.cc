#include "genai/runner/paged_runner.h"

#include "genai/base/error.h"
#include "genai/runner/test_cold_file.h"
#include "genai/runner/test_paged_models.h"
#include "genai/runner/test_storm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace genai::runner {

TEST_CASE("PagedRunner_Loaded_SaysWhatItIs") {
  const TestFolder folder;
  const KvMemory memory = memory_for("paged_checksum_int8", 5, folder.path());
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum_int8", memory);
  if (!runner) return;

  const RunnerInfo& info = runner->info();

  CHECK(info.decoder == "paged");
  CHECK(info.shares_blocks);
  CHECK(info.can_chunk_prefill);
  CHECK(info.block_size == 16);
  CHECK(info.kv_bytes_per_token == 2 * 2 * 2 * (8 + 4));  // layers, keys and values, heads, values and their scale
  CHECK(runner->block_bytes() == 16 * info.kv_bytes_per_token);
  CHECK(info.num_hot_blocks == 5);
  CHECK(info.num_warm_blocks == 5);
  CHECK(info.num_cold_blocks == 5);
  CHECK(runner->stats().kv_bytes == 0);
}

TEST_CASE("PagedRunner_OneSequenceOverScatteredBlocks_FollowsTheOracle") {
  for (const std::string& name : kChecksumModels) {
    CAPTURE(name);
    const std::unique_ptr<ModelRunner> runner = load(name);
    if (!runner) return;
    TestSequence sequence{.id = SequenceId{1}, .ids = {5, 17, 3, 96, 0}, .blocks = {7, 2, 9, 0, 4, 5}};

    for (int step = 0; step < 80; ++step) run_step(*runner, {{&sequence, sequence.num_left()}});

    CHECK(sequence.ids.size() == 85);
    CHECK(runner->stats().num_runs == 80);
  }
}

TEST_CASE("PagedRunner_RandomStorm_FollowsTheOracle") {
  const TestFolder folder;
  for (const std::string& name : kChecksumModels) {
    CAPTURE(name);
    const std::unique_ptr<ModelRunner> runner = load(name, memory_for(name, 24, folder.path()));
    if (!runner) return;
    Storm storm(*runner, 17);

    storm.run(400, [](const TestSequence& sequence, std::span<const float> row) {
      const TokenId next = argmax(row);
      REQUIRE(next == checksum_next(sequence.ids));
      return next;
    });

    CHECK(storm.num_forks > 10);
    CHECK(storm.num_copies > 10);
    CHECK(storm.num_moves > 100);
    CHECK(storm.num_rewinds > 10);
    CHECK(runner->stats().moved_blocks == storm.num_moves);
    CHECK(runner->stats().move_seconds > 0);
  }
}

/// The reference runs each sequence alone and from its beginning. Rounding differs between a chunk and single tokens;
/// a quantised key may also be rounded to the next step.
TEST_CASE("PagedRunner_RandomStorm_GivesTheLogitsOfEachSequenceAlone") {
  const TestFolder folder;
  for (const auto& [name, limit] : {std::pair<std::string, float>{"paged_random", 1e-4F},
                                    std::pair<std::string, float>{"paged_random_int8", 0.02F}}) {
    CAPTURE(name);
    const std::unique_ptr<ModelRunner> runner = load(name, memory_for(name, 24, folder.path()));
    const std::unique_ptr<ModelRunner> reference = load(name);
    if (!runner) return;
    const float tolerance = limit;
    Storm storm(*runner, 23);

    storm.run(150, [&](const TestSequence& sequence, std::span<const float> row) {
      TestSequence alone{.id = SequenceId{1}, .ids = sequence.ids, .blocks = blocks_from(0, 8)};
      run_step(*reference, {{&alone, alone.num_left()}}, [&](const TestSequence&, std::span<const float> expected) {
        const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
        REQUIRE(*high - *low > 1.0F);
        const bool agrees = std::equal(row.begin(), row.end(), expected.begin(), [&](float left, float right) {
          return std::abs(left - right) < tolerance * (*high - *low);
        });
        REQUIRE(agrees);
        return argmax(expected);
      });
      return alone.ids.back();
    });
  }
}

TEST_CASE("PagedRunner_StepWithoutLogits_ComputesKvAlone") {
  for (const std::string& name : kChecksumModels) {
    CAPTURE(name);
    const std::unique_ptr<ModelRunner> runner = load(name);
    if (!runner) return;
    TestSequence first{.id = SequenceId{1}, .ids = {1, 2, 3, 4}, .blocks = {3}};
    TestSequence second{.id = SequenceId{2}, .ids = {9, 8, 7}, .blocks = {1}};

    run_step(*runner, {{&first, 2}, {&second, 1}});
    run_step(*runner, {{&first, 2}, {&second, 1}});
    run_step(*runner, {{&first, 1}, {&second, 1}});

    CHECK(first.ids.size() == 6);
    CHECK(second.ids.size() == 4);
    CHECK(runner->execute(StepPlan{}).num_rows == 0);
  }
}

TEST_CASE("PagedRunner_Float32Rows_AreAViewOfOneMemory") {
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum");
  if (!runner) return;
  const std::vector<TokenId> ids = {1, 2, 3, 4, 5};
  const std::vector<BlockId> blocks = {0};
  const auto plan_of = [&](std::int64_t computed, std::int64_t tokens) {
    StepPlan plan;
    plan.sequences.push_back({.id = SequenceId{1},
                              .tokens = ids,
                              .num_computed_tokens = computed,
                              .num_scheduled_tokens = tokens,
                              .needs_logits = true,
                              .block_table = blocks});
    return plan;
  };

  const float* const first = runner->execute(plan_of(0, 3)).values.data();
  const float* const second = runner->execute(plan_of(3, 2)).values.data();

  CHECK(first == second);
}

TEST_CASE("PagedRunner_SameStepTwice_GivesTheSame") {
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum");
  if (!runner) return;
  TestSequence sequence{.id = SequenceId{1}, .ids = {4, 5, 6, 7, 8, 9}, .blocks = {2, 5}};
  run_step(*runner, {{&sequence, 3}});
  TestSequence again = sequence;

  run_step(*runner, {{&sequence, 3}});
  run_step(*runner, {{&again, 3}});

  CHECK(sequence.ids == again.ids);
}

TEST_CASE("PagedRunner_BlocksSavedAndLoadedElsewhere_CarryTheSequence") {
  for (const std::string& name : kChecksumModels) {
    CAPTURE(name);
    const std::unique_ptr<ModelRunner> source = load(name);
    const std::unique_ptr<ModelRunner> target = load(name);
    if (!source) return;
    TestSequence sequence{.id = SequenceId{1}, .ids = std::vector<TokenId>(40, 11), .blocks = {4, 2, 0}};
    run_step(*source, {{&sequence, 40}});
    const std::vector<BlockId> blocks = {1, 3, 5};

    std::vector<std::byte> bytes(static_cast<std::size_t>(source->block_bytes()));
    for (std::size_t i = 0; i < sequence.blocks.size(); ++i) {
      source->read_block({KvTier::kHot, sequence.blocks[i]}, bytes);
      target->write_block({KvTier::kHot, blocks[i]}, bytes);
    }

    sequence.blocks = blocks;
    run_step(*target, {{&sequence, 1}});
    CHECK(sequence.ids.size() == 42);
    CHECK(target->stats().kv_bytes == 3 * target->block_bytes());
  }
}

TEST_CASE("PagedRunner_FailedMove_IsReportedAndTheOthersAreDone") {
  const std::unique_ptr<ModelRunner> runner =
      load("paged_checksum", {.hot_bytes = 1 << 20, .warm_bytes = 1 << 20, .cold_folder = ""});
  if (!runner) return;
  TestSequence sequence{.id = SequenceId{1}, .ids = {1, 2, 3}, .blocks = {0}};
  run_step(*runner, {{&sequence, 3}});

  const std::vector<KvOp> ops = {move_op({KvTier::kWarm, 5}, {KvTier::kHot, 1}),
                                 move_op({KvTier::kHot, 0}, {KvTier::kWarm, 0}),
                                 move_op({KvTier::kWarm, 0}, {KvTier::kHot, 2})};
  const std::vector<KvFailure> failures = runner->apply(ops);

  REQUIRE(failures.size() == 1);
  CHECK(failures[0].op.to == KvPlace{KvTier::kHot, 1});
  CHECK(failures[0].reason == "block 5 of the warm KV tier is empty");
  CHECK(runner->stats().moved_blocks == 2);
  sequence.blocks = {2};
  run_step(*runner, {{&sequence, 1}});
}

TEST_CASE("PagedRunner_WrongPlansAndOperations_AreInternalErrorsAndNothingIsLost") {
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum", {.hot_bytes = 4 * 4096, .cold_folder = ""});
  if (!runner) return;
  REQUIRE(runner->info().num_hot_blocks == 4);
  TestSequence sequence{.id = SequenceId{1}, .ids = std::vector<TokenId>(20, 3), .blocks = {0}};
  run_step(*runner, {{&sequence, 16}});

  CHECK_THROWS_AS(run_step(*runner, {{&sequence, 4}}), Error);
  for (const BlockId block : {-1, 4}) {
    sequence.blocks = {0, block};
    CHECK_THROWS_AS(run_step(*runner, {{&sequence, 4}}), Error);
  }
  const std::vector<KvOp> wrong = {{.kind = KvOp::Kind::kCopySequence},
                                   {.kind = KvOp::Kind::kReleaseSequence},
                                   copy_op(0, 4),
                                   {.kind = KvOp::Kind::kCopyBlock, .from = {KvTier::kWarm, 0}}};
  for (const KvOp& op : wrong) CHECK_THROWS_AS(runner->apply({&op, 1}), Error);

  sequence.blocks = {0, 3};
  run_step(*runner, {{&sequence, 4}});
  CHECK(runner->stats().num_runs == 2);
}

TEST_CASE("PagedRunner_RunFails_KvIsIntact") {
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum");
  if (!runner) return;
  TestSequence good{.id = SequenceId{1}, .ids = std::vector<TokenId>(20, 3), .blocks = {0, 1}};
  TestSequence bad{.id = SequenceId{2}, .ids = std::vector<TokenId>(20, 3), .blocks = {2, 3}};
  run_step(*runner, {{&good, 16}, {&bad, 18}});
  bad.blocks = {-1, 3};

  const std::string error = error_of([&] { run_step(*runner, {{&good, 4}, {&bad, 2}}); }, ErrorCode::kBackend);

  CHECK(error.find("block") != std::string::npos);
  bad.blocks = {2, 3};
  run_step(*runner, {{&good, 4}, {&bad, 1}});
  run_step(*runner, {{&good, 1}, {&bad, 1}});
}

/// The file has no name, but the process can still reach it by its descriptor.
TEST_CASE("PagedRunner_ColdFileDamaged_LosesThatBlockAlone") {
  const TestFolder folder;
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum", memory_for("paged_checksum", 4, folder.path()));
  if (!runner) return;
  TestSequence sequence{.id = SequenceId{1}, .ids = std::vector<TokenId>(30, 3), .blocks = {0, 1}};
  run_step(*runner, {{&sequence, 30}});
  const std::vector<KvOp> away = {move_op({KvTier::kHot, 0}, {KvTier::kCold, 0}),
                                  move_op({KvTier::kHot, 1}, {KvTier::kCold, 1})};
  REQUIRE(runner->apply(away).empty());

  for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(descriptor, gone).string();
    if (target.rfind(folder.path(), 0) != 0) continue;
    std::fstream file(descriptor.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 77).put('x');
    CHECK(file.flush().good());
  }

  const std::vector<KvOp> back = {move_op({KvTier::kCold, 1}, {KvTier::kHot, 1}),
                                  move_op({KvTier::kCold, 0}, {KvTier::kHot, 3})};
  const std::vector<KvFailure> failures = runner->apply(back);
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].op.from == KvPlace{KvTier::kCold, 1});
  CHECK(failures[0].reason == "block 1 of the cold KV tier's file in " + folder.path() +
                                  " is damaged: its checksum is not that of what was written");
  sequence.num_computed = 16;  // what is lost is computed again
  sequence.blocks = {3, 2};
  run_step(*runner, {{&sequence, sequence.num_left()}});
}

TEST_CASE("PagedRunner_InterruptedWhileIdle_RunsTheNextStep") {
  const std::unique_ptr<ModelRunner> runner = load("paged_checksum");
  if (!runner) return;
  TestSequence sequence{.id = SequenceId{1}, .ids = {1, 2, 3}, .blocks = {0}};

  runner->interrupt();

  run_step(*runner, {{&sequence, 3}});
}

TEST_CASE("Factory_PagedSpecThatIsNotTheGraph_IsABadPackage") {
  const std::optional<ModelSpec> good = find_spec("paged_checksum");
  if (!good) return;
  const auto message_of = [&](const ModelSpec& spec) {
    return error_of([&] { make_runner(spec, options_with({})); }, ErrorCode::kBadPackage);
  };
  const std::string& path = good->model_path;
  ModelSpec no_table = *good;
  no_table.block_table.reset();
  ModelSpec wrong_heads = *good;
  wrong_heads.paged_layers[1].kv_heads = 3;
  ModelSpec wrong_size = *good;
  wrong_size.block_size = 32;
  ModelSpec wrong_type = *good;
  wrong_type.paged_layers[0].dtype = DType::kFloat16;
  ModelSpec no_scales = *good;
  no_scales.paged_layers[0].dtype = DType::kInt8;
  ModelSpec no_layers = *good;
  no_layers.paged_layers.clear();
  ModelSpec one_layer = *good;
  one_layer.paged_layers.pop_back();

  CHECK(message_of(no_table) == path + ": the paged graph has no int32 input for block_table.");
  CHECK(message_of(wrong_heads) == path + ": input \"key_cache.1\" has dims [-1,2,8,16]; expected [-1,3,8,16].");
  CHECK(message_of(wrong_size) == path + ": input \"key_cache.0\" has dims [-1,2,8,16]; expected [-1,2,8,32].");
  CHECK(message_of(wrong_type) == path + ": input \"key_cache.0\" is float32; expected float16.");
  CHECK(message_of(no_scales) ==
        path + ": the caches of \"key_cache.0\" are int8; int8 caches need scales, others have none.");
  CHECK(message_of(no_layers) ==
        path + ": the paged graph has 0 layers and blocks of 16 positions; expected at least 1 of each.");
  CHECK(message_of(one_layer) == path + ": the graph has an input \"key_cache.1\" whose meaning is not known.");
}

}  // namespace genai::runner
