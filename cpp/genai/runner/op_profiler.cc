#include "genai/runner/op_profiler.h"

#include <string>

namespace genai::runner {

bool OpSampling::wants(const RunSize& size) const {
  const Kind& kind = kinds_[kind_of(size)];
  return num_recorded_ < kMaxRuns && kind.recorded_seconds <= kShare * kind.seconds;
}

void OpSampling::ran(const RunSize& size, double seconds, bool recorded) {
  Kind& kind = kinds_[kind_of(size)];
  kind.seconds += seconds;
  if (!recorded) return;
  kind.recorded_seconds += seconds;
  ++num_recorded_;
}

OpProfiler::OpProfiler(Tracer& tracer, ort::RunOptions& run_options)
    : tracer_(tracer), run_options_(run_options), can_profile_(run_options.can_profile()) {}

std::int64_t OpProfiler::begin(const RunSize& size) {
  recorded_ = false;
  if (!can_profile_ || tracer_.level() < TraceLevel::kOps || tracer_.ops_folder().empty()) return -1;
  if (recording_ != tracer_.started_ns()) {
    recording_ = tracer_.started_ns();
    sampling_ = {};
  }
  if (!sampling_.wants(size)) return -1;
  const std::int64_t number = sampling_.num_recorded();
  run_options_.profile_to(tracer_.ops_folder() + "/run" + std::to_string(number));
  recorded_ = true;
  return number;
}

void OpProfiler::end(const RunSize& size, double seconds) {
  if (recorded_) run_options_.stop_profiling();
  if (tracer_.level() >= TraceLevel::kOps) sampling_.ran(size, seconds, recorded_);
}

}  // namespace genai::runner
