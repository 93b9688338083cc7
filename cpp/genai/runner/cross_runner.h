#pragma once

#include "genai/runner/contiguous_runner.h"
#include "genai/runner/kv_layout.h"
#include "genai/runner/loaded_model.h"
#include "genai/runner/logits_rows.h"
#include "genai/runner/source_encoder.h"
#include "genai/runner/step_inputs.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace genai::runner {

/// Decoder of an encoder-decoder. The encoder runs once a request; what the graph reads of it stays the same, and its
/// own KV (or a state of fixed size) goes from one run to the next.
///
/// Rows that stand at the same position and whose sources have the same dims run together, in the order of the plan. A
/// graph with a fixed batch B gets each of n sequences in the rows that are its share, and its first row counts:
///
///     n = 2, B = 4    row 0 1 2 3  ->  sequence 0 0 1 1
///
/// What a run returns is never changed, so a fork shares it and costs nothing. A sequence that goes back is computed
/// anew from its first token. The KV budget and RunnerStats count the decoder's own KV, not what the encoder made.
class CrossRunner : public ContiguousRunner {
 public:
  CrossRunner(std::unique_ptr<LoadedModel> model, std::unique_ptr<SourceEncoder> encoder);

  const RunnerInfo& info() const override { return info_; }
  StepLogits execute(const StepPlan& plan) override;
  RunnerStats stats() const override;
  std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const override {
    return model_->load_adapter(file);
  }
  void interrupt() override;

 private:
  /// A tensor that a run returns and the next one reads.
  struct Pair {
    std::string past;
    std::string present;
    KvLayout layout;
    bool grows = true;  ///< false: a state of fixed size
  };
  /// What a run returned, for all of its rows.
  struct Past {
    std::vector<ort::Value> values;  ///< one for each of pairs_
    std::int64_t batch = 0;
    std::int64_t positions = 0;
  };
  struct Sequence {
    std::int64_t length = 0;           ///< tokens computed
    std::shared_ptr<const Past> past;  ///< shared by the rows of a run and by forks; null: nothing is kept
    std::int64_t row = 0;              ///< of past
    std::vector<SharedValue> cross;    ///< one for each of spec.cross; empty until the encoder has run
  };
  /// A sequence of the plan.
  struct Work {
    const ScheduledSequence* scheduled = nullptr;
    std::int64_t next = 0;         ///< token to run next
    std::int64_t end = 0;          ///< behind the last one
    std::int64_t logits_row = -1;  ///< of the step's logits; -1 = none
    Sequence state = {};           ///< becomes that of the sequence when the step has succeeded
  };
  using Group = std::vector<Work*>;
  /// An input that holds the source of several rows.
  struct Gathered {
    std::vector<SharedValue> rows;
    ort::Value value;
  };

  void fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) override;
  void release(SequenceId id) override;

  Work begin(const ScheduledSequence& scheduled);
  std::int64_t chunk_of(const Work& work) const;
  bool may_share_run(const Work& first, const Work& second) const;
  Group next_group();
  void run_group(const Group& group);
  std::shared_ptr<const Past> past_of(const Group& group);
  void bind(const Group& group, const Past& past);
  void bind_cross(const Group& group, std::size_t index);
  std::shared_ptr<const Past> take_past(std::int64_t positions);
  void take_cross(const Group& group);
  void take_logits(const Work& work, std::int64_t row);

  std::size_t past_input(std::size_t pair) const { return inputs_.num_inputs() + pair; }
  std::size_t cross_input(std::size_t index) const { return past_input(pairs_.size()) + index; }

  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<SourceEncoder> encoder_;
  std::vector<Pair> pairs_;
  RunnerInfo info_;
  bool one_token_ = false;  ///< the graph takes one token a run
  StepInputs inputs_;
  ort::RunFrame frame_;
  std::vector<std::size_t> made_by_decoder_;  ///< of spec.cross; their outputs follow those of pairs_
  LogitsRows logits_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<Gathered> gathered_;  ///< one for each of spec.cross

  std::vector<Work> work_;    ///< of the current step
  std::vector<RunRow> rows_;  ///< of the current run
};

}  // namespace genai::runner
