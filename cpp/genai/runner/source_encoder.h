#pragma once

#include "genai/core/encoder_inputs.h"
#include "genai/core/model_spec.h"
#include "genai/ort/session.h"
#include "genai/runner/options.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace genai::runner {

using SharedValue = std::shared_ptr<const ort::Value>;  ///< shared by the sequences of a request

/// The encoder of an encoder-decoder. One thread, but for interrupt().
class SourceEncoder {
 public:
  /// Loads the encoder and compares the spec with its graph. `spec` is a loan for the constructor. Throws kNotFound,
  /// kBadPackage, kUnsupported, kBackend.
  SourceEncoder(const ModelSpec& spec, const RunnerOptions& options, int intra_op_threads);

  /// Runs the encoder on one request. One tensor for each of spec.cross, of batch 1; null for those that the decoder
  /// makes itself. A graph with a fixed batch gets the request in each of its rows. Throws kInvalidArgument (a tensor
  /// is missing or does not fit), kBackend, kAborted.
  std::vector<SharedValue> run(const EncoderInputs& inputs);

  /// Of large pieces of memory that the session took while it was loaded: weights.
  std::int64_t loaded_bytes() const { return loaded_bytes_; }
  std::int64_t num_runs() const { return num_runs_; }
  double run_seconds() const { return run_seconds_; }

  void clear_interrupt() { run_options_.clear_terminate(); }
  void interrupt() { run_options_.terminate(); }

 private:
  void bind(std::size_t index, const EncoderInputs& inputs);
  ort::Value first_row(ort::Value output, const CrossInput& cross) const;

  std::string path_;
  std::vector<std::string> inputs_;
  std::vector<CrossInput> cross_;
  const ort::Library& ort_library_;
  std::int64_t loaded_bytes_;  ///< while the session loads: the bytes before it
  ort::Session session_;
  ort::RunOptions run_options_;
  ort::RunFrame frame_;
  std::vector<std::vector<std::byte>> repeated_;  ///< one an input: its rows, for a graph with a fixed batch
  std::int64_t batch_ = 1;                        ///< rows of a run
  std::int64_t num_runs_ = 0;
  double run_seconds_ = 0.0;
};

}  // namespace genai::runner
