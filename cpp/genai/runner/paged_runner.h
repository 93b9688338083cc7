#pragma once

#include "genai/runner/kv_storage.h"
#include "genai/runner/loaded_model.h"
#include "genai/runner/logits_rows.h"
#include "genai/runner/model_runner.h"
#include "genai/runner/options.h"
#include "genai/runner/paged_inputs.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace genai::runner {

/// Decoder for graphs whose attention reads KV in blocks: all sequences of a step, chunks and single tokens alike, are
/// one Run. It keeps no state of a sequence: a plan names its blocks. A Run writes only positions from
/// num_computed_tokens on, so a step that failed can be repeated.
class PagedRunner : public ModelRunner {
 public:
  /// Throws what KvStorage throws.
  PagedRunner(std::unique_ptr<LoadedModel> model, const KvMemory& memory);

  const RunnerInfo& info() const override { return info_; }
  std::vector<KvFailure> apply(std::span<const KvOp> ops) override;
  StepLogits execute(const StepPlan& plan) override;
  std::int64_t block_bytes() const override { return storage_.block_bytes(); }
  void read_block(KvPlace place, std::span<std::byte> bytes) const override { storage_.read(place, bytes); }
  void write_block(KvPlace place, std::span<const std::byte> bytes) override;
  /// kv_bytes: of the hot blocks that were ever written.
  RunnerStats stats() const override;
  std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const override {
    return model_->load_adapter(file);
  }
  void interrupt() override { model_->interrupt(); }

 private:
  /// The rows of logits of a Run: of each token, of each sequence's last one, or those that logits_indices names.
  enum class LogitsOf { kTokens, kSequences, kPicked };

  static LogitsOf logits_of(const ModelSpec& spec);
  void bind_caches();
  void move(const KvOp& op);
  void mark_written(KvPlace place);
  void mark_written(const StepPlan& plan);
  void join_pages();
  bool prepare(const StepPlan& plan, std::int64_t num_rows, std::int64_t num_tokens);
  bool bind_logits(std::int64_t rows);
  StepLogits collect(const StepPlan& plan, std::int64_t num_rows);

  std::unique_ptr<LoadedModel> model_;
  RunnerInfo info_;
  KvStorage storage_;
  PagedInputs inputs_;
  ort::RunFrame frame_;        ///< inputs: those of inputs_, then storage_.tensors(); outputs: logits, then presents
  LogitsOf logits_of_;         ///< which rows the graph returns
  std::size_t bindable_rank_;  ///< rank of logits that a Run can write to bound_; 0 = it cannot
  tensor::Buffer bound_;       ///< float32 [rows, vocab] or larger
  std::int64_t bound_rows_ = -1;
  LogitsRows logits_;  ///< where the Run's own rows are not the result
  std::vector<bool> written_;
  std::int64_t num_written_ = 0;
  std::int64_t num_filled_ = 0;   ///< blocks below it are all in written_
  bool has_small_pages_ = false;  ///< that storage_.join_pages() may have something to do with
  std::int64_t moved_blocks_ = 0;
  double move_seconds_ = 0.0;
};

}  // namespace genai::runner
