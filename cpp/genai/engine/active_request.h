#pragma once

#include "genai/base/ids.h"
#include "genai/core/request.h"
#include "genai/engine/beam_group.h"
#include "genai/engine/grammar_state.h"
#include "genai/engine/sequence_output.h"
#include "genai/sampling/sequence_sampler.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace genai::engine {

/// One choice of a request that runs or waits.
struct ActiveChoice {
  SequenceId id;  ///< none with beam search: its sequences are those of the group
  SequenceOutput output;
  std::unique_ptr<sampling::SequenceSampler>
      sampler;                                 ///< with beam search only that of the first choice, for all beams
  std::unique_ptr<GrammarState> grammar = {};  ///< null without one
  std::int64_t num_forced = 0;                 ///< tokens that a grammar added and that are not computed yet
  bool finished = false;
};

/// A request between add() and its last event. Owned by EngineCore.
struct ActiveRequest {
  RequestId id;
  Request request;
  std::vector<ActiveChoice> choices;  ///< the first computes the prompt; the others are forked from it
  std::unique_ptr<BeamGroup> beams;   ///< null without beam search
  std::size_t num_finished = 0;       ///< choices
  std::int64_t max_total_tokens = 0;
  std::int64_t num_cached_tokens = 0;
  std::optional<BudgetCap> budget_cap;
  std::optional<double> deadline;  ///< in the time of EngineCore's callers, as the next three
  double submitted = 0.0;
  std::optional<double> started;      ///< when the first step that ran a token of it began
  std::optional<double> first_token;  ///< when its first event with tokens was made
  bool failed = false;
  bool aborted = false;
  bool expired = false;
};

}  // namespace genai::engine
