#pragma once

#include "genai/base/error.h"
#include "genai/core/token_table.h"
#include "genai/runner/model_runner.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace genai::engine {

/// A decoder for tests whose next token depends on the whole history: (sum of (position + 1) * (id + 1)) mod vocab. It
/// keeps the history itself, and checks that plans and stored lengths agree, so that any mix-up shows.
class FakeRunner final : public runner::ModelRunner {
 public:
  static constexpr std::int64_t kVocab = 31;

  /// What the tests change; shared because the engine owns the runner.
  struct Faults {
    std::atomic<TokenId> throw_on_token{-1};  ///< execute() throws when a scheduled token has this id
    std::atomic<TokenId> nan_on_token{-1};    ///< its row is NaN instead
    std::atomic<int> live_sequences{0};
    std::atomic<int> num_executes{0};
  };

  explicit FakeRunner(std::shared_ptr<Faults> faults, std::int64_t context_limit = 0) : faults_(std::move(faults)) {
    info_.decoder = "fake";
    info_.vocab_size = kVocab;
    info_.context_limit = context_limit;
    info_.kv_bytes_per_token = 1;
  }

  static TokenId next_token(const std::vector<TokenId>& history) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < history.size(); ++i) sum += static_cast<std::int64_t>(i + 1) * (history[i] + 1);
    return static_cast<TokenId>(sum % kVocab);
  }

  const runner::RunnerInfo& info() const override { return info_; }

  StepLogits execute(const StepPlan& plan) override {
    ++faults_->num_executes;
    for (const ScheduledSequence& s : plan.sequences) {
      for (std::int64_t i = 0; i < s.num_scheduled_tokens; ++i) {
        if (s.tokens[static_cast<std::size_t>(s.num_computed_tokens + i)] == faults_->throw_on_token) {
          throw Error(ErrorCode::kBackend, "fake failure");
        }
      }
    }
    logits_.clear();
    std::int64_t rows = 0;
    for (const ScheduledSequence& s : plan.sequences) {
      std::vector<TokenId>& history = histories_[s.id];
      check(static_cast<std::int64_t>(history.size()) >= s.num_computed_tokens, "the plan is ahead of the KV");
      history.resize(static_cast<std::size_t>(s.num_computed_tokens));
      const std::size_t end = static_cast<std::size_t>(s.num_computed_tokens + s.num_scheduled_tokens);
      check(end <= s.tokens.size(), "the plan is longer than the sequence");
      for (std::size_t i = history.size(); i < end; ++i) history.push_back(s.tokens[i]);
      if (!s.needs_logits) continue;
      check(end == s.tokens.size(), "logits were asked before the last token");
      std::vector<float> row(static_cast<std::size_t>(kVocab), 0.0F);
      row[static_cast<std::size_t>(next_token(history))] = 10.0F;
      if (history.back() == faults_->nan_on_token) row[0] = std::numeric_limits<float>::quiet_NaN();
      logits_.insert(logits_.end(), row.begin(), row.end());
      ++rows;
    }
    faults_->live_sequences = static_cast<int>(histories_.size());
    return {.values = logits_, .vocab_size = kVocab, .num_rows = rows};
  }

  void fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) override {
    std::vector<TokenId> copy = histories_.at(parent);
    copy.resize(static_cast<std::size_t>(num_tokens));
    histories_[child] = std::move(copy);
    faults_->live_sequences = static_cast<int>(histories_.size());
  }

  void release(SequenceId id) override {
    histories_.erase(id);
    faults_->live_sequences = static_cast<int>(histories_.size());
  }

  runner::RunnerStats stats() const override { return {}; }
  void interrupt() override {}

 private:
  std::shared_ptr<Faults> faults_;
  runner::RunnerInfo info_;
  std::unordered_map<SequenceId, std::vector<TokenId>> histories_;
  std::vector<float> logits_;
};

/// Token i reads as "<i>".
inline std::shared_ptr<const TokenTable> fake_token_table() {
  auto table = std::make_shared<TokenTable>();
  for (std::int64_t i = 0; i < FakeRunner::kVocab; ++i) {
    table->bytes.push_back("<" + std::to_string(i) + ">");
    table->kinds.push_back(TokenTable::Kind::kText);
  }
  return table;
}

/// The ids that the fake model makes after `prompt`.
inline std::vector<TokenId> fake_continuation(std::vector<TokenId> prompt, std::size_t count) {
  std::vector<TokenId> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(FakeRunner::next_token(prompt));
    prompt.push_back(out.back());
  }
  return out;
}

}  // namespace genai::engine
