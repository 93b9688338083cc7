#include "genai/runner/cross_runner.h"

#include "genai/runner/test_models.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

namespace genai::runner {
namespace {

/// A source and the greedy answer to it, of tests/models/encoder_decoder.py.
struct Example {
  std::vector<std::int64_t> source;
  std::vector<TokenId> answer;
};

/// A model of tests/models/encoder_decoder.py; its runner is null when the environment does not give it.
struct TestCross {
  std::unique_ptr<ModelRunner> runner;
  std::vector<Example> examples;
};

std::vector<Example> read_examples(const std::string& path) {
  std::vector<Example> examples;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Example& example = examples.emplace_back();
    bool is_answer = false;
    for (std::string word; words >> word;) {
      if (word == "|") {
        is_answer = true;
      } else if (is_answer) {
        example.answer.push_back(std::stoi(word));
      } else {
        example.source.push_back(std::stoi(word));
      }
    }
  }
  return examples;
}

ModelSpec cross_spec(const std::string& folder) {
  ModelSpec spec;
  spec.cache = CacheStyle::kCross;
  spec.logits = "logits";
  spec.vocab_size = 7;
  spec.encoder.inputs = {"input_ids", "attention_mask"};
  spec.input_ids = {"input_ids", DType::kInt64, 2};
  const auto hidden = [](const std::string& output) {
    return std::vector<CrossInput>{
        {"encoder_hidden_states", CrossInput::Source::kEncoder, output, DType::kFloat32, {-1, -1, 8}},
        {"encoder_attention_mask", CrossInput::Source::kRequest, "", DType::kInt64, {-1, -1}}};
  };
  const auto kv = [](const std::string& past, const std::string& present) {
    return KvPair{.past = past, .present = present, .dims = {-1, 1, -1, 8}};
  };
  if (folder.ends_with("merged")) {
    spec.encoder.model_path = folder + "/encoder_model.onnx";
    spec.model_path = folder + "/decoder_model_merged.onnx";
    spec.cross = hidden("last_hidden_state");
    spec.use_cache_branch = InputPort{"use_cache_branch", DType::kBool, 1};
    for (const std::string part : {"key", "value"}) {
      spec.kv.push_back(kv("past_key_values.0.decoder." + part, "present.0.decoder." + part));
      spec.cross.push_back({"past_key_values.0.encoder." + part,
                            CrossInput::Source::kDecoder,
                            "present.0.encoder." + part,
                            DType::kFloat32,
                            {-1, 1, -1, 8}});
    }
    return spec;
  }
  spec.encoder.model_path = folder + "/encoder.onnx";
  spec.model_path = folder + "/decoder.onnx";
  if (folder.ends_with("cross_kv")) {
    for (const std::string part : {"key", "value"}) {
      spec.kv.push_back(kv("past_" + part + "_self_0", "present_" + part + "_self_0"));
      spec.cross.push_back({"past_" + part + "_cross_0",
                            CrossInput::Source::kEncoder,
                            "present_" + part + "_cross_0",
                            DType::kFloat32,
                            {-1, 1, -1, 8}});
    }
    return spec;
  }
  spec.input_ids.rank = 1;
  spec.past_sequence_length = InputPort{"past_key_values_length", DType::kInt64, 1};
  spec.cross = hidden("encoder_outputs");
  spec.states.push_back({.past = "rnn_states_prev", .present = "rnn_states", .dims = {1, -1, 8}, .batch_axis = 1});
  if (!folder.ends_with("fixed")) return spec;
  spec.max_batch = 4;
  spec.cross[0].dims = {4, 5, 8};
  spec.cross[1].dims = {4, 5};
  spec.cross[1].dtype = DType::kInt32;
  spec.states[0].dims = {1, 4, 8};
  return spec;
}

TestCross load(const std::string& style) {
  TestCross test;
  const std::optional<std::string> library = test_ort_library();
  const char* const models = std::getenv("GENAI_TEST_MODELS");
  if (!library || models == nullptr) return test;
  const std::string folder = std::string(models) + "/encoder_decoder_" + style;
  RunnerOptions options;
  options.ort_library = *library;
  options.intra_op_threads = 1;
  test.runner = make_runner(cross_spec(folder), options);
  test.examples = read_examples(folder + "/examples.txt");
  return test;
}

template <typename T>
NamedTensor integers(const std::string& name, DType dtype, const std::vector<T>& values) {
  NamedTensor tensor{.name = name, .dtype = dtype, .dims = {1, std::ssize(values)}, .bytes = {}};
  tensor.bytes.resize(values.size() * sizeof(T));
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

EncoderInputs inputs_of(const std::vector<std::int64_t>& source, bool is_fixed) {
  std::vector<std::int64_t> ids = source;
  std::vector<std::int64_t> mask(source.size(), 1);
  if (is_fixed) ids.resize(5, 1), mask.resize(5, 0);
  EncoderInputs inputs;
  inputs.tensors.push_back(integers("input_ids", DType::kInt64, ids));
  if (is_fixed) {
    const std::vector<std::int32_t> narrow(mask.begin(), mask.end());
    inputs.tensors.push_back(integers("attention_mask", DType::kInt32, narrow));
    inputs.tensors.push_back(integers("encoder_attention_mask", DType::kInt32, narrow));
  } else {
    inputs.tensors.push_back(integers("attention_mask", DType::kInt64, mask));
    inputs.tensors.push_back(integers("encoder_attention_mask", DType::kInt64, mask));
  }
  return inputs;
}

/// A sequence that decodes the answer to an example.
struct Decoding {
  const Example* example = nullptr;
  EncoderInputs inputs;
  TestSequence sequence;
  std::size_t num_given = 0;  ///< tokens of the answer in the sequence

  bool is_done() const { return num_given == example->answer.size(); }
};

Decoding decoding(const Example& example, std::uint64_t id, bool is_fixed) {
  return {&example, inputs_of(example.source, is_fixed), {.id = SequenceId{id}, .ids = {1}}, 0};
}

/// One step of these; each row's best token must be the next one of its answer, and is appended.
void step(ModelRunner& runner, const std::vector<Decoding*>& rows) {
  StepPlan plan;
  for (const Decoding* row : rows) {
    const TestSequence& sequence = row->sequence;
    plan.sequences.push_back({.id = sequence.id,
                              .tokens = sequence.ids,
                              .num_computed_tokens = sequence.num_computed,
                              .num_scheduled_tokens = sequence.num_left(),
                              .needs_logits = true,
                              .encoder_inputs = &row->inputs});
  }
  const StepLogits logits = runner.execute(plan);
  REQUIRE(logits.num_rows == std::ssize(rows));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Decoding& row = *rows[i];
    CAPTURE(row.example->source);
    CAPTURE(row.num_given);
    const TokenId token = argmax(logits.row(static_cast<std::int64_t>(i)));
    REQUIRE(token == row.example->answer[row.num_given++]);
    row.sequence.num_computed = std::ssize(row.sequence.ids);
    row.sequence.ids.push_back(token);
  }
}

constexpr const char* kStyles[] = {"state", "state_fixed", "cross_kv", "merged"};

bool is_fixed(const std::string& style) {
  return style == "state_fixed";
}

}  // namespace

TEST_CASE("CrossRunner_ManySourcesInOneStep_EachGetsItsOwnAnswer") {
  for (const std::string style : kStyles) {
    CAPTURE(style);
    const TestCross test = load(style);
    if (!test.runner) continue;
    REQUIRE(test.examples.size() >= 5);
    std::vector<Decoding> all;
    for (std::size_t i = 0; i < test.examples.size(); ++i) {
      all.push_back(decoding(test.examples[i], i + 1, is_fixed(style)));
    }
    // They start in different steps, so that rows of different positions meet.
    for (std::size_t round = 0;; ++round) {
      std::vector<Decoding*> rows;
      for (std::size_t i = 0; i <= std::min(round, all.size() - 1); ++i) {
        if (!all[i].is_done()) rows.push_back(&all[i]);
      }
      if (rows.empty() && round >= all.size()) break;
      if (!rows.empty()) step(*test.runner, rows);
    }
  }
}

TEST_CASE("CrossRunner_ForksAndSequencesThatGoBack_GoOnAsTheirTokensSay") {
  for (const std::string style : kStyles) {
    CAPTURE(style);
    const TestCross test = load(style);
    if (!test.runner) continue;
    const auto longest =
        std::ranges::max_element(test.examples, {}, [](const Example& example) { return example.answer.size(); });
    REQUIRE(longest->answer.size() >= 5);
    Decoding parent = decoding(*longest, 1, is_fixed(style));
    for (int i = 0; i < 3; ++i) step(*test.runner, {&parent});

    Decoding child = parent;
    child.sequence.id = SequenceId{2};
    fork(*test.runner, parent.sequence.id, child.sequence.id, 3);
    Decoding shorter = parent;  // a copy of fewer positions, then one that goes back itself
    shorter.sequence.id = SequenceId{3};
    fork(*test.runner, parent.sequence.id, shorter.sequence.id, 2);
    shorter.sequence.num_computed = 2;
    step(*test.runner, {&child, &parent, &shorter});
    parent.sequence.num_computed = 1;
    parent.sequence.ids.resize(2);
    parent.num_given = 1;
    step(*test.runner, {&parent, &shorter});
    release(*test.runner, parent.sequence.id);
    step(*test.runner, {&child});
  }
}

TEST_CASE("CrossRunner_TensorMissingOrOfAnotherShape_IsNamedAndOthersGoOn") {
  for (const std::string style : kStyles) {
    CAPTURE(style);
    const TestCross test = load(style);
    if (!test.runner) continue;
    Decoding good = decoding(test.examples[0], 1, is_fixed(style));
    Decoding without = decoding(test.examples[1], 2, is_fixed(style));
    without.inputs.tensors.erase(without.inputs.tensors.begin());
    CHECK_THROWS_WITH_AS(step(*test.runner, {&good, &without}),
                         doctest::Contains("no tensor \"input_ids\", which the encoder reads"), Error);
    Decoding flat = decoding(test.examples[1], 3, is_fixed(style));
    flat.inputs.tensors[0].dims = {static_cast<std::int64_t>(flat.inputs.tensors[0].dims[1])};
    CHECK_THROWS_WITH_AS(step(*test.runner, {&good, &flat}), doctest::Contains("encoder input \"input_ids\" is int64"),
                         Error);
    step(*test.runner, {&good});
  }
}

TEST_CASE("CrossRunner_SourceOfAStepThatFailed_IsNotEncodedAgain") {
  for (const std::string style : kStyles) {
    CAPTURE(style);
    const TestCross test = load(style);
    if (!test.runner) continue;
    Decoding good = decoding(test.examples[0], 1, is_fixed(style));
    Decoding without = decoding(test.examples[1], 2, is_fixed(style));
    without.inputs.tensors.clear();
    CHECK_THROWS_AS(step(*test.runner, {&good, &without}), Error);
    CHECK(test.runner->stats().num_runs == 1);  // the encoder's

    step(*test.runner, {&good});
    CHECK(test.runner->stats().num_runs == 2);

    release(*test.runner, good.sequence.id);
    Decoding again = decoding(test.examples[2], 1, is_fixed(style));  // another source under the same id
    step(*test.runner, {&again});
    CHECK(test.runner->stats().num_runs == 4);
  }
}

}  // namespace genai::runner
