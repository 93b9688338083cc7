#pragma once

#include "genai/base/ids.h"
#include "genai/core/encoder_inputs.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace genai::sched {

/// What the scheduler keeps of a sequence.
struct SequenceState {
  enum class Phase : std::uint8_t {
    kNew,      ///< in no list yet
    kWaiting,  ///< in the queue, holds no KV
    kRunning,  ///< holds KV and has tokens to compute
    kIdle,     ///< holds KV and has nothing to compute until it gets a token
    kParked,   ///< was idle and lost its KV; queued again when it gets a token
    kRemoved,  ///< forgotten while a plan that names it is open
  };

  SequenceId id;
  std::vector<TokenId> tokens;  ///< prompt and generated
  std::int64_t num_prompt_tokens = 0;
  std::string cache_salt;
  std::shared_ptr<const EncoderInputs> encoder_inputs;  ///< shared with the request and its other sequences
  std::int64_t max_total_tokens = 0;
  int priority = 0;
  std::uint64_t order = 0;  ///< place in line: the number of the arrival; a forked sequence has its parent's
  double arrival = 0.0;     ///< seconds
  double rank = 0.0;        ///< whole priority with the ageing that it had when it was admitted; fixed while it runs
  Phase phase = Phase::kNew;
  std::int64_t num_computed_tokens = 0;
  std::int64_t num_scheduled_tokens = 0;  ///< in the open plan
  std::int64_t num_cached_tokens = 0;
  bool has_started = false;
  bool is_written_early = false;  ///< the KV of the open plan was reported as written, because of a fork

  /// Positions that KV had no room for when it was last tried to admit it (0 = not tried), and how many prompts had
  /// been computed by then: until another one is, it does not need less.
  std::int64_t missing_tokens = 0;
  std::uint64_t missing_since = 0;

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t remaining() const { return num_tokens() - num_computed_tokens; }
  /// Tokens of the source that are encoded in its next step, its first.
  std::int64_t num_source_tokens() const {
    return encoder_inputs && num_computed_tokens == 0 ? encoder_inputs->num_tokens : 0;
  }
  /// Whether its next step is one token, and no source is encoded for it.
  bool is_decoding() const { return remaining() == 1 && num_source_tokens() == 0; }
};

/// Whether `a` is served before `b` while both run; the other way round they are preempted. A total order.
inline bool outranks(const SequenceState& a, const SequenceState& b) {
  if (a.rank != b.rank) return a.rank > b.rank;
  if (a.order != b.order) return a.order < b.order;
  return a.id < b.id;
}

}  // namespace genai::sched
