#include "genai/runner/copy_runner.h"

#include "genai/runner/test_models.h"

#include <doctest/doctest.h>

#include <memory>
#include <numeric>

namespace genai::runner {
namespace {

/// The graph of tests/models/window.py, which keeps 3 positions of KV; null when the environment does not give it.
std::unique_ptr<ModelRunner> load_window() {
  const std::optional<std::string> library = test_ort_library();
  const std::optional<std::string> path = library ? test_model("window") : std::nullopt;
  if (!path) return nullptr;
  RunnerOptions options;
  options.ort_library = *library;
  options.intra_op_threads = 1;
  return make_runner(test_spec(*path, *library), options);
}

void run_window_step(ModelRunner& runner, const std::vector<TestStep>& steps) {
  run_step(runner, steps, [](const TestSequence& sequence, std::span<const float> row) {
    const auto first = sequence.ids.end() - std::min<std::ptrdiff_t>(4, std::ssize(sequence.ids));
    const TokenId expected = (std::accumulate(first, sequence.ids.end(), 0) + 1) % 97;
    REQUIRE(argmax(row) == expected);
    return expected;
  });
}

}  // namespace

TEST_CASE("CopyRunner_GraphDropsOldKv_SequencesGoBackAndForkAllTheSame") {
  const std::unique_ptr<ModelRunner> runner = load_window();
  if (!runner) return;
  TestSequence first{.id = SequenceId{1}, .ids = {5, 17, 3, 96, 0, 12, 31, 8, 90}};
  TestSequence second{.id = SequenceId{2}, .ids = {1, 2}};
  for (int step = 0; step < 8; ++step) {
    run_window_step(*runner, {{&first, first.num_left()}, {&second, second.num_left()}});
  }

  for (const std::int64_t length : {16, 12, 5, 2, 1}) {
    TestSequence child = first;
    child.id = SequenceId{100 + static_cast<std::uint64_t>(length)};
    child.num_computed = length;
    child.ids.resize(static_cast<std::size_t>(length));
    child.ids.push_back(50);
    fork(*runner, first.id, child.id, length);
    run_window_step(*runner, {{&child, 1}, {&first, 1}});

    first.num_computed = length;
    first.ids = child.ids;
    run_window_step(*runner, {{&first, first.num_left()}, {&second, 1}});
    for (int step = 0; step < 12; ++step) run_window_step(*runner, {{&child, 1}, {&first, first.num_left()}});
    REQUIRE(first.num_computed >= 5);
  }
}

TEST_CASE("CopyRunner_ForkOfASequenceThatWentBack_ComputesItsKvAnew") {
  const std::unique_ptr<ModelRunner> runner = load_window();
  if (!runner) return;
  TestSequence parent{.id = SequenceId{1}, .ids = {5, 17, 3, 96, 0, 12, 31, 8, 90}};
  run_window_step(*runner, {{&parent, 9}});
  TestSequence child = parent;
  child.id = SequenceId{2};
  child.num_computed = 7;

  fork(*runner, parent.id, child.id, 7);
  TestSequence grandchild = child;
  grandchild.id = SequenceId{3};
  grandchild.num_computed = 6;
  fork(*runner, child.id, grandchild.id, 6);

  run_window_step(*runner, {{&grandchild, 2}, {&child, 1}, {&parent, 1}});
  run_window_step(*runner, {{&grandchild, 2}, {&child, 2}, {&parent, 1}});
}

}  // namespace genai::runner
