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

OpProfiler::OpProfiler(Tracer& tracer, bool can_profile) : tracer_(tracer), can_profile_(can_profile) {}

std::int64_t OpProfiler::begin(const RunSize& size, ort::RunOptions& options) {
  recorded_ = nullptr;
  if (!can_profile_ || tracer_.level() < TraceLevel::kOps || tracer_.ops_folder().empty()) return -1;
  if (recording_ != tracer_.started_ns()) {
    recording_ = tracer_.started_ns();
    sampling_ = {};
  }
  if (!sampling_.wants(size)) return -1;
  const std::int64_t number = sampling_.num_recorded();
  options.profile_to(tracer_.ops_folder() + "/run" + std::to_string(number));
  recorded_ = &options;
  return number;
}

void OpProfiler::end(const RunSize& size, double seconds) {
  if (recorded_ != nullptr) recorded_->stop_profiling();
  if (tracer_.level() >= TraceLevel::kOps) sampling_.ran(size, seconds, recorded_ != nullptr);
}

}  // namespace genai::runner
