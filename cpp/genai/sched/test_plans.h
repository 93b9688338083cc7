#pragma once

#include "genai/core/step.h"

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

// Plans as tests write them down.
namespace genai::sched {

/// Samples token 1 for each row that asks for logits.
inline StepResult sample_all(const StepPlan& plan) {
  StepResult result;
  for (const ScheduledSequence& s : plan.sequences) {
    result.sequences.push_back({s.id, s.needs_logits ? std::optional<TokenId>(1) : std::nullopt, std::nullopt});
  }
  return result;
}

/// A sequence of a plan.
struct Share {
  std::uint64_t id;
  std::int64_t computed;
  std::int64_t scheduled;
  bool logits;
  friend bool operator==(const Share&, const Share&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Share& s) {
    return out << "{" << s.id << ", " << s.computed << ", " << s.scheduled << ", " << s.logits << "}";
  }
};

using Shares = std::vector<Share>;

/// What a plan has, in its order.
inline Shares shares(const StepPlan& plan) {
  Shares out;
  for (const ScheduledSequence& s : plan.sequences) {
    out.push_back({s.id.value, s.num_computed_tokens, s.num_scheduled_tokens, s.needs_logits});
  }
  return out;
}

}  // namespace genai::sched
