#include "genai/runner/op_profiler.h"

#include <doctest/doctest.h>

namespace genai::runner {
namespace {

constexpr RunSize kDecode{.num_tokens = 2, .num_rows = 2};
constexpr RunSize kPrompt{.num_tokens = 64, .num_rows = 1};

TEST_CASE("OpSampling_FirstRunOfEachKind_IsRecorded") {
  OpSampling sampling;

  CHECK(sampling.wants(kPrompt));
  sampling.ran(kPrompt, 1.0, true);

  CHECK_FALSE(sampling.wants(kPrompt));
  CHECK(sampling.wants(kDecode));
  CHECK(sampling.num_recorded() == 1);
}

TEST_CASE("OpSampling_ManyRuns_RecordedOnesKeepToTheirShare") {
  OpSampling sampling;
  double all = 0.0;
  double recorded = 0.0;

  // A recorded run takes half as long again.
  for (int i = 0; i < 1000; ++i) {
    const bool wanted = sampling.wants(kDecode);
    const double seconds = wanted ? 0.015 : 0.010;
    sampling.ran(kDecode, seconds, wanted);
    all += seconds;
    if (wanted) recorded += seconds;
  }

  // One run more than the share allows can have been begun.
  CHECK(recorded <= OpSampling::kShare * all + 0.015);
  CHECK(recorded >= OpSampling::kShare * all - 0.015);
}

TEST_CASE("OpSampling_AfterTheLastFile_RecordsNoMore") {
  OpSampling sampling;

  for (std::int64_t i = 0; i < OpSampling::kMaxRuns; ++i) sampling.ran(kDecode, 0.0, true);

  CHECK_FALSE(sampling.wants(kDecode));
  CHECK_FALSE(sampling.wants(kPrompt));
}

}  // namespace
}  // namespace genai::runner
