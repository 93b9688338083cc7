#pragma once

#include "genai/base/trace.h"
#include "genai/core/model_spec.h"
#include "genai/kernels/packed_store.h"
#include "genai/kernels/weight_memory.h"
#include "genai/ort/custom_op.h"
#include "genai/ort/session.h"
#include "genai/runner/kv_layout.h"
#include "genai/runner/loaded_adapter.h"
#include "genai/runner/model_runner.h"
#include "genai/runner/op_profiler.h"
#include "genai/runner/options.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace genai::runner {

/// A model in ONNX Runtime with what its decoder needs to know: what all decoders share. One thread, but for
/// interrupt() and load_adapter().
class LoadedModel {
 public:
  /// Loads the model and compares the spec with the graph. Throws kNotFound, kBadPackage, kUnsupported, kBackend.
  LoadedModel(const ModelSpec& spec, const RunnerOptions& options);

  const ModelSpec& spec() const { return spec_; }
  const ort::Library& ort_library() const { return ort_library_; }
  const ort::Session& session() const { return session_; }
  /// One for each of spec().kv.
  const std::vector<KvLayout>& layouts() const { return layouts_; }
  /// Facts that do not depend on the decoder are filled in.
  const RunnerInfo& info() const { return info_; }
  /// Whether several rows of different lengths may share a Run, as far as inputs and outputs tell.
  bool takes_ragged_batches() const { return takes_ragged_batches_; }
  /// Whether several rows of one length may share a Run.
  bool takes_batches() const { return takes_batches_; }

  /// Inputs after those of StepInputs: the pasts; outputs: the logits, then the presents.
  std::vector<std::string> past_names() const;
  std::vector<std::string> output_names() const;

  /// Checks a plan that is to be executed, takes its adapter for the runs that follow, and forgets an interrupt that
  /// came while nothing ran. Throws as check_plan().
  void begin(const StepPlan& plan);
  /// Runs the model with the adapter of begin() and counts the time. `size`: for the trace.
  void run(ort::RunFrame& frame, const RunSize& size);
  /// What the engine thread records.
  TraceBuffer& trace() { return tracer_->thread(TraceThread::kEngine); }
  /// See RunnerStats.
  std::int64_t session_bytes() const {
    return static_cast<std::int64_t>(ort_library_.host_allocator_used_bytes() + kernels::weight_bytes());
  }
  std::int64_t num_runs() const { return num_runs_; }
  double run_seconds() const { return run_seconds_; }

  /// See ModelRunner.
  std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const;
  void interrupt();

 private:
  void check_ports() const;
  void run_with(ort::RunOptions& options, ort::RunFrame& frame);
  void check_input(const std::string& name, DType dtype) const;
  void check_output(const std::string& name) const;
  void check_cache(const std::string& name, DType dtype, const Dims& dims) const;
  void check_paged() const;
  std::vector<std::string> input_names() const;
  void check_logits() const;
  [[noreturn]] void refuse(const std::string& why) const;

  ModelSpec spec_;
  int intra_op_threads_;
  const ort::Library& ort_library_;
  std::int64_t bytes_before_load_;
  std::shared_ptr<kernels::PackedStore> packed_store_;  ///< shared with domain_
  std::unique_ptr<const ort::OpDomain> domain_;         ///< of session_
  ort::Session session_;
  ort::RunOptions run_options_;
  std::shared_ptr<Tracer> tracer_;  ///< shared with the engine; one of our own when it gave none
  OpProfiler op_profiler_;
  std::vector<KvLayout> layouts_;
  RunnerInfo info_;
  bool takes_batches_ = false;
  bool takes_ragged_batches_ = false;
  const LoadedAdapter* adapter_ = nullptr;               ///< of the plan that is executed
  mutable std::atomic<std::uint64_t> num_adapters_ = 0;  ///< loaded so far
  std::mutex interrupt_mutex_;
  bool is_interrupted_ = false;         ///< guarded by interrupt_mutex_
  ort::RunOptions* running_ = nullptr;  ///< of a run with an adapter; guarded by interrupt_mutex_
  std::int64_t num_runs_ = 0;
  double run_seconds_ = 0.0;
};

/// Throws kInternal or kInvalidArgument unless the plan's sequences are consistent: token counts, ids within
/// [0, vocab), no sequence twice.
void check_plan(const StepPlan& plan, const ModelSpec& spec);

}  // namespace genai::runner
