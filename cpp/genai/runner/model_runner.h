#pragma once

#include "genai/base/ids.h"
#include "genai/core/adapter.h"
#include "genai/core/kv.h"
#include "genai/core/step.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace genai::runner {

/// Facts about a loaded decoder.
struct RunnerInfo {
  std::string decoder;             ///< "paged", "slot", "copy", "cross": which decoder this is, for `show` and metrics
  std::string execution_provider;  ///< effective provider, e.g. "cpu"
  std::int64_t vocab_size = 0;     ///< width of a logits row
  std::int64_t context_limit = 0;  ///< tokens a sequence may have by the graph itself; 0 = no limit known
  std::int64_t kv_bytes_per_token = 0;
  std::int64_t loaded_bytes = 0;  ///< of large pieces of memory that the session took while it was loaded: weights
  std::string packed_weights;  ///< what became of weights that our operators pack; see kernels::PackedStore::summary()
  bool has_encoder = false;    ///< an encoder-decoder: each sequence comes with encoder inputs
  std::string needed_adapter_input;  ///< an input that only an adapter feeds; empty = runs without one as well
  bool can_chunk_prefill = true;     ///< false: the scheduler must give a whole prompt in one step
  int intra_op_threads = 0;
  bool shares_blocks = false;       ///< KV lies in blocks that sequences share; false: contiguous KV for each sequence
  int block_size = 16;              ///< positions of a block
  std::int64_t num_hot_blocks = 0;  ///< that the storage has, or that the budget allows; >= 1
  std::int64_t num_warm_blocks = 0;
  std::int64_t num_cold_blocks = 0;
};

/// Running figures of a decoder.
struct RunnerStats {
  std::int64_t kv_bytes = 0;     ///< now held for KV in the hot tier
  std::int64_t num_runs = 0;     ///< calls of ONNX Runtime's Run
  std::int64_t num_replays = 0;  ///< paged: runs that kept the inputs of the step before (DecodeMemo)
  double run_seconds = 0.0;      ///< inside Run; all other time of execute() is our own
  std::int64_t moved_blocks = 0;
  double move_seconds = 0.0;  ///< moving blocks between tiers
  /// Of large pieces of memory that ONNX Runtime and our operators hold now, for all models of the process: weights,
  /// scratch, and KV of the copy decoder.
  std::int64_t session_bytes = 0;
};

/// A KV operation that could not be done.
struct KvFailure {
  KvOp op;
  std::string reason;  ///< for logs and errors: file, cause
};

/// Runs step plans on a model and owns the KV bytes. Knows no sampling and decides nothing about KV: it does what
/// KvOp says. One thread.
///
/// A sequence exists from its first plan (or from being the child of a kCopySequence). Decoders with shared blocks
/// know no sequences at all: a plan says it all.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual const RunnerInfo& info() const = 0;

  /// Carries out KV operations in order and returns those that failed; the others are done. Only kMoveBlock may fail
  /// (its target then holds nothing) and kCopySequence (there is no child then).
  virtual std::vector<KvFailure> apply(std::span<const KvOp> ops) = 0;

  /// Writes the KV of all scheduled tokens and returns one logits row for each sequence with needs_logits, in plan
  /// order. On an error nothing is lost: KV up to each num_computed_tokens is intact, so the same plan, or a part of
  /// it, may be executed again. Requires: the last tokens that run have one adapter, or none has any. Throws kBackend
  /// (ORT), kResourceExhausted (memory).
  virtual StepLogits execute(const StepPlan& plan) = 0;

  /// Bytes of one block, all layers, as read_block() gives and write_block() takes them; 0 = not supported.
  virtual std::int64_t block_bytes() const = 0;
  /// Throws kBackend when the place cannot be read (a damaged file).
  virtual void read_block(KvPlace place, std::span<std::byte> bytes) const = 0;
  virtual void write_block(KvPlace place, std::span<const std::byte> bytes) = 0;

  virtual RunnerStats stats() const = 0;

  /// Loads an adapter for plans. Any thread may call it. Throws kBadPackage (no adapter, or one of another
  /// model; the text says in what they differ), kUnsupported (the graph takes none), kBackend.
  virtual std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const = 0;

  /// Makes a running execute() fail soon with kAborted. Any thread may call it.
  virtual void interrupt() = 0;
};

}  // namespace genai::runner
