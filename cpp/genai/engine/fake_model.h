#pragma once

#include "genai/base/error.h"
#include "genai/base/ids.h"
#include "genai/core/adapter.h"
#include "genai/core/step.h"
#include "genai/core/token_table.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace genai::engine {

inline constexpr std::int64_t kFakeVocab = 31;

/// An adapter of a fake runner.
class FakeAdapter final : public Adapter {
 public:
  explicit FakeAdapter(std::uint64_t number) : number_(number) {}
  std::uint64_t number() const override { return number_; }

 private:
  std::uint64_t number_;
};

/// What tests change in a fake runner and see of it; shared because the engine owns the runner.
struct Faults {
  std::atomic<TokenId> throw_on_token{-1};  ///< execute() throws when a scheduled token has this id
  std::atomic<TokenId> nan_on_token{-1};    ///< its row is NaN instead
  std::atomic<bool> interrupt{false};       ///< execute() is interrupted
  std::atomic<int> throw_in_apply{0};       ///< so many calls of apply() throw
  std::atomic<int> fail_moves_in_1000{0};   ///< of the moves to and from the cold tier, or of copies of sequences
  std::atomic<int> live_sequences{0};       ///< of contiguous decoders
  std::atomic<int> num_executes{0};
  std::atomic<int> num_failed_moves{0};
  std::atomic<int> num_mix_ups{0};  ///< KV that was read was not that of the tokens
};

/// Throws what the faults say of a plan.
inline void throw_faults(const StepPlan& plan, const Faults& faults) {
  if (faults.interrupt) throw Error(ErrorCode::kAborted, "fake interrupt");
  for (const ScheduledSequence& s : plan.sequences) {
    const auto run = s.tokens.subspan(static_cast<std::size_t>(s.num_computed_tokens),
                                      static_cast<std::size_t>(s.num_scheduled_tokens));
    if (std::ranges::find(run, faults.throw_on_token.load()) != run.end()) {
      throw Error(ErrorCode::kBackend, "fake failure");
    }
  }
}

/// What the fake model makes of a token: its id, and another one for each adapter.
inline TokenId fake_entry(const ScheduledSequence& sequence, std::int64_t position) {
  const Adapter* const adapter = adapter_at(sequence.adapters, position);
  const TokenId token = sequence.tokens[static_cast<std::size_t>(position)];
  return adapter == nullptr ? token : token + 1000 * static_cast<TokenId>(adapter->number());
}

/// As decoders do: one adapter for all tokens of a run.
inline void check_one_adapter(const StepPlan& plan) {
  const Adapter* const first =
      plan.sequences.empty() ? nullptr
                             : adapter_at(plan.sequences.front().adapters, plan.sequences.front().num_computed_tokens);
  for (const ScheduledSequence& s : plan.sequences) {
    for (std::int64_t i = s.num_computed_tokens; i < s.num_computed_tokens + s.num_scheduled_tokens; ++i) {
      check(adapter_at(s.adapters, i) == first, "a run has two adapters");
    }
  }
}

/// The next token of the fake model, which depends on the whole history: (sum of (position + 1) * (id + 1)) mod vocab.
inline TokenId fake_next_token(std::span<const TokenId> history) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < history.size(); ++i) sum += static_cast<std::int64_t>(i + 1) * (history[i] + 1);
  return static_cast<TokenId>(sum % kFakeVocab);
}

/// Appends the logits after `history`: 4 for the next token, and numbers of [0, 3) that also depend on the whole
/// history.
inline void append_fake_row(std::span<const TokenId> history, std::vector<float>& logits) {
  std::uint64_t hash = 1469598103934665603U;
  for (const TokenId token : history) hash = (hash ^ static_cast<std::uint64_t>(token + 1)) * 1099511628211U;
  const std::size_t start = logits.size();
  for (std::int64_t id = 0; id < kFakeVocab; ++id) {
    hash = (hash ^ static_cast<std::uint64_t>(id)) * 1099511628211U;
    logits.push_back(3.0F * static_cast<float>(hash >> 40U) / static_cast<float>(1U << 24U));
  }
  logits[start + static_cast<std::size_t>(fake_next_token(history))] = 4.0F;
}

/// The same after `faults` had their say.
inline void append_fake_row(std::span<const TokenId> history, const Faults& faults, std::vector<float>& logits) {
  const std::size_t start = logits.size();
  append_fake_row(history, logits);
  if (history.back() == faults.nan_on_token) logits[start] = std::numeric_limits<float>::quiet_NaN();
}

/// Token i reads as "<i>".
inline std::shared_ptr<const TokenTable> fake_token_table() {
  auto table = std::make_shared<TokenTable>();
  for (std::int64_t i = 0; i < kFakeVocab; ++i) {
    table->bytes.push_back("<" + std::to_string(i) + ">");
    table->kinds.push_back(TokenTable::Kind::kText);
  }
  return table;
}

/// The ids that the fake model makes after `prompt` when the best one is taken each time.
inline std::vector<TokenId> fake_continuation(std::vector<TokenId> prompt, std::size_t count) {
  std::vector<TokenId> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(fake_next_token(prompt));
    prompt.push_back(out.back());
  }
  return out;
}

}  // namespace genai::engine
