#pragma once

#include "genai/base/ids.h"
#include "genai/embed/batches.h"
#include "genai/embed/encoder_spec.h"
#include "genai/runner/options.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace genai::embed {

/// One text, as token ids. A loan for the call.
struct Text {
  std::span<const TokenId> ids;           ///< at least one
  std::span<const std::int32_t> types{};  ///< token types, one for each id; empty = zeros
  std::size_t num_skipped = 0;            ///< leading tokens that means leave out, see pooling.h
};

/// Vectors of texts, in their order: float32 [num_texts, width].
struct Vectors {
  std::vector<float> values;
  std::int64_t width = 0;
};

/// Totals since the model was loaded.
struct EncoderMetrics {
  std::int64_t num_texts = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_padding = 0;  ///< tokens that filled up rows
  std::int64_t num_runs = 0;
  double run_seconds = 0.0;
};

/// A loaded encoder. Thread-safe: runs go one after the other, and callers take turns after each of them, so one with
/// many texts does not shut the others out. In the child of a fork every call fails with kAborted.
class Encoder {
 public:
  /// Loads the model. max_batch_tokens: tokens of one run, padding included, >= 1. Throws kNotFound, kBadPackage,
  /// kUnsupported, kBackend, kInvalidArgument.
  Encoder(const EncoderSpec& spec, const runner::RunnerOptions& options, std::int64_t max_batch_tokens);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  /// Encodes texts. before_run: called before each run and every 50 ms while another caller's run is awaited; what it
  /// throws ends the call.
  /// Throws kInvalidArgument (an empty text, an id out of range), kBackend (the run failed, or a vector is not
  /// finite), kResourceExhausted, kAborted (closed or forked). Cost: one run for each batch of plan_batches().
  Vectors encode(std::span<const Text> texts, const std::function<void()>& before_run);

  /// Waits for the run that goes on, fails the calls that wait with kAborted, and frees the model. Idempotent.
  void close();
  bool closed() const;

  EncoderMetrics metrics() const;
  /// Values of one vector: that of the output times the number of poolings.
  std::int64_t width() const;
  int intra_op_threads() const;

 private:
  class Loaded;
  class Turns;
  void check_usable() const;
  void check_texts(std::span<const Text> texts) const;

  EncoderSpec spec_;
  BatchLimits limits_;
  int intra_op_threads_;
  int process_;  ///< where the model was loaded
  std::unique_ptr<Turns> turns_;
  std::unique_ptr<Loaded> loaded_;  ///< used by who has the turn; null once closed
};

}  // namespace genai::embed
