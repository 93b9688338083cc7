#include "genai/embed/encoder.h"

#include "genai/base/error.h"
#include "genai/runner/test_models.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace genai::embed {
namespace {

// The values themselves are tested in tests/embedding, against NumPy.
constexpr float kTolerance = 1e-6F;

using Ids = std::vector<TokenId>;

const std::function<void()> kNothing = [] {};

/// The tiny encoder of tests/models/encoder.py; null, with a message, when it is not given.
std::unique_ptr<Encoder> test_encoder(std::int64_t max_batch_tokens = 64) {
  const std::optional<std::string> library = runner::test_ort_library();
  const std::optional<std::string> model = runner::test_model("encoder");
  if (!library || !model) return nullptr;
  EncoderSpec spec;
  spec.model_path = *model;
  spec.input_ids = {"input_ids", DType::kInt64, 2};
  spec.attention_mask = InputPort{"attention_mask", DType::kInt64, 2};
  spec.token_types = InputPort{"token_type_ids", DType::kInt64, 2};
  spec.output = "last_hidden_state";
  spec.pooling = {Pooling::kMean};
  spec.width = 8;
  spec.pad_id = 2;
  spec.vocab_size = 61;
  runner::RunnerOptions options;
  options.ort_library = *library;
  options.intra_op_threads = 1;
  return std::make_unique<Encoder>(spec, options, max_batch_tokens);
}

std::vector<Text> texts_of(const std::vector<Ids>& ids) {
  std::vector<Text> texts;
  for (const Ids& each : ids) texts.push_back({.ids = each});
  return texts;
}

std::vector<Ids> ragged() {
  std::vector<Ids> texts;
  for (TokenId size = 1; size <= 20; ++size) {
    Ids ids;
    for (TokenId t = 0; t < (size * 7) % 23 + 1; ++t) ids.push_back(4 + (t * 11 + size) % 57);
    texts.push_back(ids);
  }
  return texts;
}

ErrorCode failure(Encoder& encoder, const std::vector<Ids>& ids, const std::string& part) {
  try {
    encoder.encode(texts_of(ids), kNothing);
  } catch (const Error& error) {
    CAPTURE(error.what());
    CHECK(std::string(error.what()).find(part) != std::string::npos);
    return error.code();
  }
  FAIL("no error");
  return ErrorCode::kInternal;
}

void check_same(std::span<const float> left, std::span<const float> right) {
  REQUIRE(left.size() == right.size());
  for (std::size_t i = 0; i < left.size(); ++i) CHECK(std::abs(left[i] - right[i]) <= kTolerance);
}

}  // namespace

TEST_CASE("Encoder_RaggedTexts_AreTheSameInAnyCompany") {
  const std::unique_ptr<Encoder> encoder = test_encoder();
  if (!encoder) return;
  const std::vector<Ids> ids = ragged();

  const Vectors together = encoder->encode(texts_of(ids), kNothing);

  REQUIRE(together.width == 8);
  REQUIRE(together.values.size() == ids.size() * 8);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Vectors alone = encoder->encode(texts_of({ids[i]}), kNothing);
    check_same(alone.values, std::span(together.values).subspan(i * 8, 8));
  }
}

TEST_CASE("Encoder_TokenTypes_ChangeTheVector") {
  const std::unique_ptr<Encoder> encoder = test_encoder();
  if (!encoder) return;
  const Ids ids = {5, 6, 7};
  const std::vector<std::int32_t> types = {0, 1, 1};
  const std::vector<std::int32_t> zeros = {0, 0, 0};
  const Text plain{.ids = ids};

  const Vectors vectors =
      encoder->encode(std::vector<Text>{plain, {.ids = ids, .types = types}, {.ids = ids, .types = zeros}}, kNothing);

  const std::span<const float> values(vectors.values);
  check_same(values.subspan(0, 8), values.subspan(16, 8));
  CHECK(std::abs(values[0] - values[8]) > 1e-3F);
}

TEST_CASE("Encoder_WrongTexts_AreRefusedBeforeAnythingRuns") {
  const std::unique_ptr<Encoder> encoder = test_encoder();
  if (!encoder) return;

  CHECK(failure(*encoder, {{4}, {}}, "text 1 has no token") == ErrorCode::kInvalidArgument);
  CHECK(failure(*encoder, {{4}, {5, 61}}, "text 1 has the token id 61; allowed: 0..60") == ErrorCode::kInvalidArgument);
  CHECK(failure(*encoder, {{-1}}, "text 0 has the token id -1") == ErrorCode::kInvalidArgument);
  CHECK(encoder->metrics().num_runs == 0);
  CHECK(encoder->encode({}, kNothing).values.empty());
}

TEST_CASE("Encoder_Stopped_EndsBeforeTheNextRun") {
  const std::unique_ptr<Encoder> encoder = test_encoder(4);
  if (!encoder) return;
  int calls = 0;
  const std::function<void()> stop_third = [&] {
    if (++calls == 3) throw Error(ErrorCode::kAborted, "enough");
  };

  CHECK_THROWS_AS(encoder->encode(texts_of({{4, 5, 6, 7, 8}, {4, 5, 6, 7}, {4, 5, 6}}), stop_third), Error);
  CHECK(encoder->metrics().num_runs == 2);
  CHECK(encoder->encode(texts_of({{4}}), kNothing).values.size() == 8);
}

TEST_CASE("Encoder_ManyCallers_GetTheirOwnVectors") {
  const std::unique_ptr<Encoder> encoder = test_encoder(16);
  if (!encoder) return;
  const std::vector<Ids> ids = ragged();
  const Vectors expected = encoder->encode(texts_of(ids), kNothing);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int caller = 0; caller < 6; ++caller) {
      threads.emplace_back([&] {
        for (int round = 0; round < 10; ++round) {
          const Vectors vectors = encoder->encode(texts_of(ids), kNothing);
          for (std::size_t i = 0; i < vectors.values.size(); ++i) {
            if (!(std::abs(vectors.values[i] - expected.values[i]) <= kTolerance)) ++wrong;
          }
        }
      });
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("Encoder_CallersWithManyTexts_LetOthersIn") {
  const std::unique_ptr<Encoder> encoder = test_encoder(1);
  if (!encoder) return;
  std::atomic<bool> is_running = false;
  std::atomic<int> runs = 0;
  const std::vector<Ids> many(2000, Ids{4, 5, 6});
  std::jthread busy([&] {
    encoder->encode(texts_of(many), [&] {
      is_running = true;
      ++runs;
    });
  });
  while (!is_running) std::this_thread::yield();

  encoder->encode(texts_of({{4}}), kNothing);

  CHECK(runs < 2000);
  busy.join();
}

TEST_CASE("Encoder_Closed_FailsThoseWhoWaitAndWhoCome") {
  const std::unique_ptr<Encoder> encoder = test_encoder(1);
  if (!encoder) return;
  std::atomic<bool> is_running = false;
  std::atomic<bool> was_aborted = false;
  const std::vector<Ids> many(20000, Ids{4, 5, 6});
  std::jthread busy([&] {
    try {
      encoder->encode(texts_of(many), [&] { is_running = true; });
    } catch (const Error& error) {
      was_aborted = error.code() == ErrorCode::kAborted;
    }
  });
  while (!is_running) std::this_thread::yield();

  encoder->close();
  encoder->close();
  busy.join();

  CHECK(was_aborted);
  CHECK(encoder->closed());
  CHECK(failure(*encoder, {{4}}, "the encoder is closed") == ErrorCode::kAborted);
}

TEST_CASE("Encoder_BudgetBelowOne_IsRefused") {
  if (!runner::test_ort_library() || !runner::test_model("encoder")) return;
  CHECK_THROWS_AS(test_encoder(0), Error);
}

}  // namespace genai::embed
