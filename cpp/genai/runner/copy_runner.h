#pragma once

#include "genai/runner/contiguous_runner.h"
#include "genai/runner/lane.h"
#include "genai/runner/loaded_model.h"
#include "genai/runner/logits_rows.h"

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace genai::runner {

/// Decoder for any graph: the present outputs of a run are the past inputs of the next one, so a token costs O(length).
/// Graphs without KV run all tokens of a sequence each time.
///
/// Rows that decode together keep their KV in one batch, padded on the left with zeros that the mask hides, for as long
/// as they are the same rows:
///
///     row 0   . . . a b c     mask 0 0 0 1 1 1
///     row 1   d e f g h i     mask 1 1 1 1 1 1
class CopyRunner : public ContiguousRunner {
 public:
  explicit CopyRunner(std::unique_ptr<LoadedModel> model);

  const RunnerInfo& info() const override { return info_; }
  StepLogits execute(const StepPlan& plan) override;
  RunnerStats stats() const override;
  std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const override {
    return model_->load_adapter(file);
  }
  void interrupt() override { model_->interrupt(); }

 private:
  /// KV tensors of one batch.
  struct Cache {
    std::vector<ort::Value> values;  ///< one for each pair; empty when nothing was computed
    std::int64_t batch = 0;
    std::int64_t positions = 0;  ///< of the longest pair; less than the tokens when the graph drops old KV
  };
  struct Sequence {
    std::int64_t length = 0;  ///< tokens computed
    Cache cache;              ///< of batch 1; empty while the sequence is in the group
    bool lost_kv = false;     ///< the graph dropped KV that is needed again: all of it is computed anew in the next run
    int group_row = -1;
  };
  /// The rows that decode together.
  struct Group {
    std::vector<SequenceId> ids;         ///< one a row; rows that left stay until the group is built anew
    std::vector<std::int64_t> paddings;  ///< one a row: positions on the left that are not its own
    Cache cache;
  };
  using Rows = std::vector<const ScheduledSequence*>;
  /// Whether rows may share a run. Graphs exist that take a batch and mix its rows up or ignore the mask, so the first
  /// group is compared with its rows run alone.
  enum class Batching { kUntried, kTrusted, kRefused };

  void fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) override;
  void release(SequenceId id) override;
  void prepare(const ScheduledSequence& scheduled);
  Rows rows_to_group(const StepPlan& plan) const;
  void regroup(const Rows& rows);
  void leave_group(Sequence& sequence, std::int64_t num_positions);
  Cache extract(const Sequence& sequence, std::int64_t num_positions) const;
  KvLayout::Place place(std::size_t pair, const Sequence& sequence) const;
  std::int64_t stored_positions(const Sequence& sequence) const;
  bool has_all_positions(const Sequence& sequence) const;

  Cache run(Lane& lane, const Cache& past, std::int64_t mask_width);
  Batching& batching_of(const Rows& rows);
  std::vector<RunRow> group_rows(const Rows& rows) const;
  bool run_group(const Rows& rows);
  void try_group(const Rows& rows);
  bool group_agrees_with_singles(const Rows& rows);
  void dissolve_group();
  void run_single(const ScheduledSequence& scheduled);
  void run_prefix(const ScheduledSequence& scheduled);
  void take_logits(const ScheduledSequence& scheduled, const ort::Value& logits, std::int64_t batch_row);
  void commit(const StepPlan& plan);

  std::unique_ptr<LoadedModel> model_;
  RunnerInfo info_;
  Batching padded_ = Batching::kUntried;   ///< rows of different lengths, padded
  Batching uniform_ = Batching::kUntried;  ///< rows of one length
  bool drops_old_kv_ = false;              ///< a present was shorter than past and new tokens together
  Lane group_lane_;
  Lane single_lane_;
  LogitsRows logits_;
  LogitsRows group_logits_;          ///< of a group that is compared
  std::vector<ort::Value> no_past_;  ///< zero positions, one for each pair
  std::unordered_map<SequenceId, Sequence> sequences_;
  Group group_;

  // Of the current step; its results become the sequences' state when all its runs have succeeded.
  std::unordered_map<SequenceId, std::int64_t> logits_row_;
  std::unordered_map<SequenceId, Cache> new_caches_;
  Cache new_group_cache_;
  std::vector<RunRow> rows_;  ///< of the current run, reused
};

}  // namespace genai::runner
