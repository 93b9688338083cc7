#pragma once

#include "genai/base/ids.h"
#include "genai/core/request.h"
#include "genai/core/token_table.h"
#include "genai/engine/beam_search.h"
#include "genai/engine/sequence_output.h"
#include "genai/sched/scheduler.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace genai::engine {

/// The beams of one request as sequences of the scheduler. Beam i is beam i of the search; its sequence is idle from
/// the moment its row is there until all rows are there. A beam that is preempted while it is idle keeps its row. Owned
/// by EngineCore. One thread.
class BeamGroup {
 public:
  /// `first` computes the prompt. `request` is a loan for the constructor. `end_ids`: EOS ids, unless ignored.
  BeamGroup(const Request& request, std::span<const TokenId> eos_ids, std::shared_ptr<const TokenTable> table,
            std::int64_t max_total_tokens, SequenceId first);

  std::size_t size() const { return beams_.size(); }
  SequenceId id(std::size_t index) const { return beams_[index].id; }
  std::size_t num_candidates() const { return search_.num_candidates(); }

  /// Where sampling puts the row of a beam; null when it has one already.
  BeamRow* row_to_fill(std::size_t index);
  void row_filled(std::size_t index) { beams_[index].has_row = true; }
  bool all_rows_filled() const;

  /// Takes the rows and starts the next step: forks, appends and removes sequences. At the end of the search it removes
  /// all of them. Requires: all_rows_filled(), and no plan is open.
  void advance(sched::Scheduler& scheduler, const std::function<SequenceId()>& new_id, double now);
  bool done() const { return search_.done(); }

  /// Forgets all sequences of the group.
  void remove_sequences(sched::Scheduler& scheduler);

  /// The final event of a choice: the best finished sequence of that rank, or an error when there is none.
  Event result(std::size_t rank, SequenceOutput& output) const;
  /// The same for a search that is given up: `reason` ends what is there.
  Event given_up(std::size_t rank, SequenceOutput& output, FinishReason reason) const;

 private:
  struct Beam {
    SequenceId id;
    BeamRow row;
    bool has_row = false;
    std::optional<SequenceOutput> text;  ///< looks for stop strings; absent when there are none
  };
  bool ends(std::size_t parent, TokenId token) const;
  void start_next(std::span<const BeamSearch::Next> next, sched::Scheduler& scheduler,
                  const std::function<SequenceId()>& new_id, double now);

  BeamSearch search_;
  std::vector<TokenId> end_ids_;
  int num_choices_;
  std::int64_t max_total_tokens_;
  int priority_;
  std::string cache_salt_;
  std::vector<Beam> beams_;
};

/// The ids that end a sequence: stop ids, and EOS unless it is ignored; each once.
std::vector<TokenId> end_ids(const SamplingParams& params, std::span<const TokenId> eos_ids);

}  // namespace genai::engine
