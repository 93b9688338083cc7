#pragma once

#include "genai/base/trace.h"
#include "genai/ort/session.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace genai::runner {

/// How much a Run computes.
struct RunSize {
  std::int64_t num_tokens = 0;
  std::int64_t num_rows = 0;  ///< sequences
};

/// Which runs are recorded, so that those that are take at most kShare of the time of all: ONNX Runtime notes each
/// operator and writes a file before it returns, which makes a run of a small model a third longer. Prompts and single
/// tokens count apart, and the first run of each kind is recorded. One thread.
class OpSampling {
 public:
  static constexpr double kShare = 0.04;
  static constexpr std::int64_t kMaxRuns = 128;  ///< in one recording

  bool wants(const RunSize& size) const;
  void ran(const RunSize& size, double seconds, bool recorded);
  std::int64_t num_recorded() const { return num_recorded_; }

 private:
  struct Kind {
    double seconds = 0.0;
    double recorded_seconds = 0.0;
  };
  static std::size_t kind_of(const RunSize& size) { return size.num_tokens > size.num_rows ? 1 : 0; }

  std::array<Kind, 2> kinds_;
  std::int64_t num_recorded_ = 0;
};

/// Lets ONNX Runtime record the operators of a part of the runs while a trace asks for it. Engine thread.
class OpProfiler {
 public:
  /// `tracer` is a loan for the object's life. can_profile: see ort::RunOptions.
  OpProfiler(Tracer& tracer, bool can_profile);

  /// Before a Run. Number of its file, 0 for the first of a recording, or -1 when it is not recorded. The file is
  /// `<ops_folder>/run<number>_<date>.json`. `options`: of that Run, a loan until end().
  std::int64_t begin(const RunSize& size, ort::RunOptions& options);
  /// After it.
  void end(const RunSize& size, double seconds);

 private:
  Tracer& tracer_;
  const bool can_profile_;
  std::int64_t recording_ = 0;           ///< Tracer::started_ns() of the recording that sampling_ belongs to
  ort::RunOptions* recorded_ = nullptr;  ///< of the Run between begin() and end(), if it is recorded
  OpSampling sampling_;
};

}  // namespace genai::runner
