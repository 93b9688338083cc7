#pragma once

// Helpers of the decoder tests: the checksum models of tests/models and their oracle. GENAI_TEST_MODELS is the folder
// that `python -m tests.models FOLDER` wrote, GENAI_ORT_LIBRARY the path of libonnxruntime; without them the tests that
// need them pass without doing anything, and say so.

#include "genai/ort/session.h"
#include "genai/runner/factory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace genai::runner {

/// Path of the library for tests; nullopt, with a message, when it is not given.
inline std::optional<std::string> test_ort_library() {
  const char* const path = std::getenv("GENAI_ORT_LIBRARY");
  if (path == nullptr) MESSAGE("skipped: set GENAI_ORT_LIBRARY to the path of libonnxruntime");
  return path == nullptr ? std::nullopt : std::optional<std::string>(path);
}

/// Path of a test model; nullopt, with a message, when there is none.
inline std::optional<std::string> test_model(const std::string& name) {
  const char* const folder = std::getenv("GENAI_TEST_MODELS");
  if (folder == nullptr) {
    MESSAGE("skipped: set GENAI_TEST_MODELS to the folder that `python -m tests.models FOLDER` wrote");
    return std::nullopt;
  }
  for (const char* file : {"/model.onnx", "/onnx/decoder_model_merged.onnx"}) {
    const std::string path = std::string(folder) + "/" + name + file;
    if (std::filesystem::exists(path)) return path;
  }
  FAIL("no model " << name << " in " << folder);
  return std::nullopt;
}

inline std::string present_of(const std::string& past) {
  if (past.find("_cache.") != std::string::npos) return "updated_" + past;
  if (past.rfind("past_key_values.", 0) == 0) return "present." + past.substr(16);
  return "present" + past.substr(4);  // past_0 -> present_0
}

/// The spec of a test model, by the names that its exporters use.
inline ModelSpec test_spec(const std::string& model_path, const std::string& ort_library) {
  const ort::Session session(ort::Library::load(ort_library), model_path, ort::SessionOptions{});
  ModelSpec spec;
  spec.model_path = model_path;
  spec.cache = model_path.find("gqa") != std::string::npos ? CacheStyle::kSlotGqa : CacheStyle::kCopy;
  const std::unordered_map<std::string, std::optional<InputPort> ModelSpec::*> roles = {
      {"attention_mask", &ModelSpec::attention_mask},
      {"position_ids", &ModelSpec::position_ids},
      {"seqlens_k", &ModelSpec::seqlens_k},
      {"total_sequence_length", &ModelSpec::total_sequence_length},
      {"use_cache_branch", &ModelSpec::use_cache_branch},
      {"write_indices", &ModelSpec::write_indices},
      {"nonpad_kv_seqlen", &ModelSpec::nonpad_kv_seqlen}};
  for (const ort::Port& port : session.inputs()) {
    const InputPort input{port.name, *port.dtype, static_cast<int>(port.dims.size())};
    if (port.name == "input_ids") {
      spec.input_ids = input;
    } else if (const auto role = roles.find(port.name); role != roles.end()) {
      spec.*(role->second) = input;
    } else {
      KvPair pair{.past = port.name, .present = present_of(port.name), .dtype = *port.dtype, .dims = port.dims};
      if (port.dims.size() == 5) pair.batch_axis = 1, pair.sequence_axis = 3;
      if (port.dims.size() == 3) pair.sequence_axis = 1, spec.cache = CacheStyle::kSlotStatic;
      spec.kv.push_back(pair);
    }
  }
  const ort::Port& logits = *session.find_output("logits");
  spec.logits = "logits";
  spec.logits_dtype = *logits.dtype;
  spec.last_logits_only = logits.dims[1] == 1;
  spec.vocab_size = logits.dims[2];
  spec.context_limit = 60;
  return spec;
}

/// The id that follows `ids` in every checksum model; the definition is in tests/models/checksum.py.
inline TokenId checksum_next(const std::vector<TokenId>& ids) {
  constexpr std::int64_t kVocab = 97;
  std::int64_t sum0 = 0;
  std::int64_t sum1 = 0;
  std::int64_t position = 0;
  for (const TokenId id : ids) {
    sum0 += (position + 1) * (id + 1) % kVocab + 2 * ((position + 2) * (id + 3) % kVocab);
    sum1 += (position + 3) * (sum0 % kVocab + 1) % kVocab + 2 * ((position + 1) * (sum0 % kVocab + 5) % kVocab);
    ++position;
  }
  return static_cast<TokenId>((sum0 % kVocab + 3 * (sum1 % kVocab) + 11 * position) % kVocab);
}

/// Decoders with contiguous KV only.
inline void fork(ModelRunner& runner, SequenceId parent, SequenceId child, std::int64_t num_tokens) {
  const KvOp op{.kind = KvOp::Kind::kCopySequence, .parent = parent, .child = child, .num_tokens = num_tokens};
  REQUIRE(runner.apply({&op, 1}).empty());
}
inline void release(ModelRunner& runner, SequenceId id) {
  const KvOp op{.kind = KvOp::Kind::kReleaseSequence, .parent = id};
  REQUIRE(runner.apply({&op, 1}).empty());
}

inline TokenId argmax(std::span<const float> row) {
  return static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
}

/// A sequence as a scheduler keeps it.
struct TestSequence {
  SequenceId id;
  std::vector<TokenId> ids;
  std::int64_t num_computed = 0;
  std::vector<BlockId> blocks = {};  ///< for the paged decoder

  std::int64_t num_left() const { return static_cast<std::int64_t>(ids.size()) - num_computed; }
};

/// One step: each sequence runs its number of tokens. `next_id(sequence, row)` judges each logits row and gives the id
/// that is appended.
struct TestStep {
  TestSequence* sequence = nullptr;
  std::int64_t num_tokens = 0;
};
template <typename NextId>
void run_step(ModelRunner& runner, const std::vector<TestStep>& steps, NextId next_id) {
  StepPlan plan;
  for (const TestStep& step : steps) {
    plan.sequences.push_back({.id = step.sequence->id,
                              .tokens = step.sequence->ids,
                              .num_computed_tokens = step.sequence->num_computed,
                              .num_scheduled_tokens = step.num_tokens,
                              .needs_logits = step.num_tokens == step.sequence->num_left(),
                              .block_table = step.sequence->blocks});
  }
  const StepLogits logits = runner.execute(plan);
  std::int64_t row = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    TestSequence& sequence = *steps[i].sequence;
    sequence.num_computed += steps[i].num_tokens;
    if (!plan.sequences[i].needs_logits) continue;
    CAPTURE(sequence.ids);
    sequence.ids.push_back(next_id(sequence, logits.row(row++)));
  }
  REQUIRE(row == logits.num_rows);
}

/// As above, for the checksum models.
inline void run_step(ModelRunner& runner, const std::vector<TestStep>& steps) {
  run_step(runner, steps, [](const TestSequence& sequence, std::span<const float> row) {
    const TokenId next = argmax(row);
    REQUIRE(next == checksum_next(sequence.ids));
    return next;
  });
}

}  // namespace genai::runner
