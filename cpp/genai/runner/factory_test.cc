// Every decoder on every shape of the checksum model: the next token depends on all ids before it and their positions,
// so a mixed-up slot, a wrong mask or a lost rewind changes the answer.

#include "genai/runner/factory.h"

#include "genai/base/error.h"
#include "genai/runner/test_models.h"

#include <doctest/doctest.h>

#include <array>
#include <random>

namespace genai::runner {
namespace {

const std::vector<std::string> kModels = {"checksum_concat",
                                          "checksum_concat_no_mask",
                                          "checksum_concat_fp16",
                                          "checksum_concat_fp16_logits",
                                          "checksum_concat_int32",
                                          "checksum_concat_last_logits",
                                          "checksum_packed",
                                          "checksum_merged",
                                          "checksum_attention",
                                          "checksum_gqa",
                                          "checksum_gqa_positions",
                                          "checksum_gqa_seqlens",
                                          "checksum_gqa_packed_qkv",
                                          "checksum_gqa_int32",
                                          "checksum_gqa_fp16",
                                          "checksum_static",
                                          "checksum_static_no_positions",
                                          "checksum_static_fp16",
                                          "checksum_static_plain"};

/// The test model with its decoder; null when the environment does not give one.
std::unique_ptr<ModelRunner> load(const std::string& name, std::int64_t hot_bytes = 0) {
  const std::optional<std::string> library = test_ort_library();
  const std::optional<std::string> path = library ? test_model(name) : std::nullopt;
  if (!path) return nullptr;
  RunnerOptions options;
  options.ort_library = *library;
  options.intra_op_threads = 1;
  options.kv.hot_bytes = hot_bytes;
  return make_runner(test_spec(*path, *library), options);
}

/// Calls `body(runner)` for each model.
template <typename Body>
void for_each_model(Body body) {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const std::unique_ptr<ModelRunner> runner = load(name);
    if (!runner) return;
    body(*runner);
  }
}

TestSequence sequence_of(std::uint64_t id, std::vector<TokenId> ids) {
  return {.id = SequenceId{id}, .ids = std::move(ids)};
}

}  // namespace

TEST_CASE("Decoder_OneSequence_FollowsTheOracle") {
  for_each_model([](ModelRunner& runner) {
    TestSequence sequence = sequence_of(1, {5, 17, 3, 96, 0});

    for (int step = 0; step < 20; ++step) run_step(runner, {{&sequence, sequence.num_left()}});

    CHECK(sequence.ids.size() == 25);
  });
}

TEST_CASE("Decoder_PromptOfOneToken_FollowsTheOracle") {
  for_each_model([](ModelRunner& runner) {
    TestSequence sequence = sequence_of(1, {42});

    for (int step = 0; step < 5; ++step) run_step(runner, {{&sequence, sequence.num_left()}});

    CHECK(sequence.ids.size() == 6);
  });
}

/// Sequences come and go, are chunked, skipped, cut, forked and rewound at random; each token is checked.
TEST_CASE("Decoder_RandomSchedules_FollowTheOracle") {
  for_each_model([](ModelRunner& runner) {
    const bool chunks = runner.info().can_chunk_prefill;
    std::mt19937 random(11);
    const auto below = [&random](std::size_t end) { return random() % end; };
    std::vector<std::unique_ptr<TestSequence>> live;
    std::uint64_t next_id = 1;
    for (int step = 0; step < 150; ++step) {
      if (live.empty() || (live.size() < 6 && below(4) == 0)) {
        std::vector<TokenId> prompt(1 + below(9));
        for (TokenId& id : prompt) id = static_cast<TokenId>(below(97));
        live.push_back(std::make_unique<TestSequence>(sequence_of(next_id++, prompt)));
      }
      std::vector<TestStep> steps;
      for (const auto& sequence : live) {
        if (below(5) == 0) continue;
        const std::int64_t left = sequence->num_left();
        const bool cut = chunks && below(3) == 0;
        steps.push_back(
            {sequence.get(), cut ? 1 + static_cast<std::int64_t>(below(static_cast<std::size_t>(left))) : left});
      }
      std::shuffle(steps.begin(), steps.end(), random);
      if (!steps.empty()) run_step(runner, steps);

      TestSequence& any = *live[below(live.size())];
      const std::uint64_t action = below(12);
      if (action == 0 && any.num_computed > 0) {
        any.num_computed = 1 + static_cast<std::int64_t>(below(static_cast<std::size_t>(any.num_computed)));
      } else if (action == 1 && any.num_computed > 1) {
        auto child = std::make_unique<TestSequence>(any);
        child->id = SequenceId{next_id++};
        child->num_computed = 1 + static_cast<std::int64_t>(below(static_cast<std::size_t>(any.num_computed)));
        child->ids.resize(static_cast<std::size_t>(child->num_computed));
        child->ids.push_back(static_cast<TokenId>(below(97)));
        fork(runner, any.id, child->id, child->num_computed);
        live.push_back(std::move(child));
      }
      std::erase_if(live, [&](const auto& sequence) {
        const bool ends = sequence->ids.size() > 50 || below(20) == 0;
        if (ends) release(runner, sequence->id);
        return ends;
      });
    }
    for (const auto& sequence : live) release(runner, sequence->id);
    CHECK(runner.stats().kv_bytes == 0);
  });
}

TEST_CASE("Decoder_SequenceGoesBack_ComputesAnewFromThere") {
  for_each_model([](ModelRunner& runner) {
    TestSequence first = sequence_of(1, {1, 2, 3});
    TestSequence second = sequence_of(2, {9, 8, 7, 6});
    for (int step = 0; step < 6; ++step) run_step(runner, {{&first, first.num_left()}, {&second, second.num_left()}});

    first.num_computed = 2;
    first.ids = {1, 2, 50};

    for (int step = 0; step < 4; ++step) run_step(runner, {{&first, first.num_left()}, {&second, second.num_left()}});
    CHECK(first.ids.size() == 7);
  });
}

TEST_CASE("Decoder_TokenOutsideTheVocabulary_IsRefusedAndNothingIsLost") {
  const std::unique_ptr<ModelRunner> runner = load("checksum_gqa");
  if (!runner) return;
  TestSequence sequence = sequence_of(1, {1, 2, 3});
  run_step(*runner, {{&sequence, 3}});
  std::vector<TokenId> bad = sequence.ids;
  bad.push_back(97);
  StepPlan plan;
  plan.sequences.push_back({.id = sequence.id, .tokens = bad, .num_computed_tokens = 3, .num_scheduled_tokens = 2});

  CHECK_THROWS_WITH_AS(runner->execute(plan), "token id 97 at position 4; allowed: 0..96 (the model's vocabulary)",
                       Error);
  run_step(*runner, {{&sequence, 1}});
}

TEST_CASE("Decoder_InterruptedWhileIdle_RunsTheNextStep") {
  const std::unique_ptr<ModelRunner> runner = load("checksum_concat");
  if (!runner) return;
  TestSequence sequence = sequence_of(1, {1, 2, 3});

  runner->interrupt();

  run_step(*runner, {{&sequence, 3}});
}

TEST_CASE("StaticCache_SequencePassesTheCapacity_IsAnErrorThatNamesIt") {
  const std::unique_ptr<ModelRunner> runner = load("checksum_static");
  if (!runner) return;
  CHECK(runner->info().context_limit == 60);  // the smaller of the limit and the 64 positions of the graph
  TestSequence sequence = sequence_of(1, std::vector<TokenId>(65, 1));

  try {
    run_step(*runner, {{&sequence, 65}});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kContextOverflow);
    CHECK(std::string(error.what()).find("static-cache write 0..65 exceeds capacity 64") == 0);
  }
}

TEST_CASE("Decoder_KvMemory_GrowsWithUseAndGoesBackToNothing") {
  const std::unique_ptr<ModelRunner> runner = load("checksum_gqa");
  if (!runner) return;
  CHECK(runner->stats().kv_bytes == 0);
  TestSequence first = sequence_of(1, {1, 2, 3});
  TestSequence second = sequence_of(2, {4, 5});

  run_step(*runner, {{&first, 3}});
  CHECK(runner->stats().kv_bytes == 3 * runner->info().kv_bytes_per_token);
  run_step(*runner, {{&first, 1}, {&second, 2}});

  CHECK(runner->stats().kv_bytes == 6 * runner->info().kv_bytes_per_token);
  CHECK(runner->stats().num_runs == 3);
  release(*runner, SequenceId{1});
  release(*runner, SequenceId{7});
  release(*runner, SequenceId{2});
  CHECK(runner->stats().kv_bytes == 0);
}

TEST_CASE("Decoder_HotBudget_BecomesBlocksOf16Positions") {
  for (const std::string name : {"checksum_gqa", "checksum_concat"}) {
    CAPTURE(name);
    const std::unique_ptr<ModelRunner> unlimited = load(name);
    if (!unlimited) return;
    const std::int64_t block = 16 * unlimited->info().kv_bytes_per_token;

    CHECK(unlimited->info().num_hot_blocks == 2147483647);
    CHECK(load(name, 7 * block - 1)->info().num_hot_blocks == 6);
    CHECK(load(name, 1)->info().num_hot_blocks == 1);
    CHECK(unlimited->info().block_size == 16);
    CHECK_FALSE(unlimited->info().shares_blocks);
    CHECK(unlimited->info().num_warm_blocks == 0);
    CHECK(unlimited->block_bytes() == 0);
  }
}

TEST_CASE("Decoder_OperationOnBlocks_IsAnInternalErrorWithContiguousKv") {
  const std::unique_ptr<ModelRunner> runner = load("checksum_gqa");
  if (!runner) return;
  const KvOp copy{.kind = KvOp::Kind::kCopyBlock};
  const KvOp move{.kind = KvOp::Kind::kMoveBlock};
  std::array<std::byte, 4> bytes{};

  CHECK_THROWS_AS(runner->apply({&copy, 1}), Error);
  CHECK_THROWS_AS(runner->apply({&move, 1}), Error);
  CHECK_THROWS_AS(runner->read_block({}, bytes), Error);
  CHECK_THROWS_AS(runner->write_block({}, bytes), Error);
}

TEST_CASE("Factory_GraphWithoutANamedInput_IsABadPackage") {
  const std::optional<std::string> library = test_ort_library();
  const std::optional<std::string> path = library ? test_model("checksum_gqa") : std::nullopt;
  if (!path) return;
  RunnerOptions options;
  options.ort_library = *library;
  const ModelSpec good = test_spec(*path, *library);

  const auto error_of = [&](const ModelSpec& spec) {
    try {
      make_runner(spec, options);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadPackage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  ModelSpec no_mask = good;
  no_mask.attention_mask.reset();
  ModelSpec wrong_type = good;
  wrong_type.input_ids.dtype = DType::kInt32;
  ModelSpec wrong_vocab = good;
  wrong_vocab.vocab_size = 98;
  ModelSpec symbolic = good;
  symbolic.kv[0].dims = {-1, 2, -1, -1};

  CHECK(error_of(no_mask) == *path + ": the graph has an input \"attention_mask\" whose meaning is not known.");
  CHECK(error_of(wrong_type) == *path + ": input \"input_ids\" is int64; expected int32.");
  CHECK(error_of(wrong_vocab).find("[-1,-1,97]; expected [batch, sequence, 98]") != std::string::npos);
  CHECK(error_of(symbolic).find("has no fixed size in axis 3") != std::string::npos);
}

}  // namespace genai::runner
