#pragma once

#include "genai/runner/contiguous_runner.h"
#include "genai/runner/lane.h"
#include "genai/runner/loaded_model.h"
#include "genai/runner/logits_rows.h"
#include "genai/runner/slot_storage.h"
#include "genai/runner/slot_table.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace genai::runner {

/// Decoder for graphs that write new KV into caller-owned buffers: GroupQueryAttention with shared past and present,
/// and static-cache exports. Each sequence has a slot of the buffers.
///
///     decode rows of a step   one Run over a range of slots; a slot inside the range that has nothing to run gets a
///                             dummy token at its next position, which its next real token overwrites
///     longer chunks           one Run each, on a view of one slot
///
/// A token costs the same at any capacity with GroupQueryAttention; static-cache exports attend over the capacity.
class SlotRunner : public ContiguousRunner {
 public:
  explicit SlotRunner(std::unique_ptr<LoadedModel> model);

  const RunnerInfo& info() const override { return info_; }
  StepLogits execute(const StepPlan& plan) override;
  RunnerStats stats() const override;
  std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const override {
    return model_->load_adapter(file);
  }
  void interrupt() override { model_->interrupt(); }

 private:
  /// What a slot does in this step.
  struct Work {
    const ScheduledSequence* sequence = nullptr;  ///< of the plan; null = nothing
    std::int64_t logits_row = -1;                 ///< row of the step's logits; -1 = none
  };
  /// A lane with the range of slots that its KV views show.
  struct BoundLane {
    explicit BoundLane(const LoadedModel& model) : lane(model) {}
    Lane lane;
    int first = -1;
    int count = 0;
    std::uint64_t generation = 0;
  };

  /// What becomes of the logits of a decode run: they are copied to logits_, or stay in decode_logits_.
  enum class Logits { kCollect, kLeave };

  void fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) override;
  void release(SequenceId id) override;
  void admit(const StepPlan& plan);
  void reserve(int slots, std::int64_t longest);
  void check_capacity(const ScheduledSequence& sequence) const;
  bool is_decode(int slot) const;
  bool can_idle(int slot) const;
  int end_of_range(int first) const;
  void bind(BoundLane& bound, int first, int count);
  bool decode_logits_are_the_result(std::int64_t num_rows) const;
  void run_decode(int first, int count, Logits logits);
  void run_chunk(int slot);
  void bind_decode_logits(int count);
  std::int64_t mask_width(std::int64_t longest, int count) const;

  std::unique_ptr<LoadedModel> model_;
  RunnerInfo info_;
  SlotTable table_;
  SlotStorage storage_;
  std::int64_t fixed_capacity_ = 0;  ///< positions that the graph allows; 0 = any
  BoundLane decode_;
  BoundLane chunk_;
  LogitsRows logits_;
  bool binds_decode_logits_ = false;  ///< decode runs write to decode_logits_, else to memory of ONNX Runtime
  tensor::Buffer decode_logits_;      ///< float32 [decode_logits_rows_, 1, vocab] or larger
  int decode_logits_rows_ = 0;
  std::vector<Work> work_;    ///< one a slot, reused
  std::vector<RunRow> rows_;  ///< of the current run, reused
};

}  // namespace genai::runner
