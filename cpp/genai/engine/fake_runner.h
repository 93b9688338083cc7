#pragma once

#include "genai/base/error.h"
#include "genai/base/random.h"
#include "genai/engine/fake_model.h"
#include "genai/runner/model_runner.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace genai::engine {

/// Size of a fake decoder with contiguous KV.
struct FakeSize {
  std::int64_t context_limit = 0;
  int block_size = 16;
  std::int64_t num_blocks = 1024;
};

/// A decoder with contiguous KV for tests. It keeps each sequence's history itself, and checks that plans and stored
/// lengths agree, so that any mix-up shows.
class FakeRunner final : public runner::ModelRunner {
 public:
  explicit FakeRunner(std::shared_ptr<Faults> faults, FakeSize size = {}) : faults_(std::move(faults)) {
    info_.decoder = "fake";
    info_.vocab_size = kFakeVocab;
    info_.context_limit = size.context_limit;
    info_.kv_bytes_per_token = 1;
    info_.block_size = size.block_size;
    info_.num_hot_blocks = size.num_blocks;
  }

  const runner::RunnerInfo& info() const override { return info_; }

  std::vector<runner::KvFailure> apply(std::span<const KvOp> ops) override {
    if (faults_->throw_in_apply > 0) {
      --faults_->throw_in_apply;
      throw Error(ErrorCode::kResourceExhausted, "fake failure of apply");
    }
    std::vector<runner::KvFailure> failures;
    for (const KvOp& op : ops) {
      if (op.kind == KvOp::Kind::kReleaseSequence) {
        histories_.erase(op.parent);
      } else if (uniform_at(7, 0, num_copies_++) * 1000 < faults_->fail_moves_in_1000) {
        failures.push_back({op, "fake failure of a copy"});
      } else {
        check(op.kind == KvOp::Kind::kCopySequence, "a contiguous decoder has no blocks to move");
        std::vector<TokenId> copy = histories_.at(op.parent);
        check(static_cast<std::int64_t>(copy.size()) >= op.num_tokens, "a fork of tokens that are not there");
        copy.resize(static_cast<std::size_t>(op.num_tokens));
        histories_[op.child] = std::move(copy);
      }
    }
    faults_->live_sequences = static_cast<int>(histories_.size());
    return failures;
  }

  StepLogits execute(const StepPlan& plan) override {
    check_one_adapter(plan);
    ++faults_->num_executes;
    throw_faults(plan, *faults_);
    logits_.clear();
    std::int64_t rows = 0;
    for (const ScheduledSequence& s : plan.sequences) {
      std::vector<TokenId>& history = histories_[s.id];
      check(static_cast<std::int64_t>(history.size()) >= s.num_computed_tokens, "the plan is ahead of the KV");
      history.resize(static_cast<std::size_t>(s.num_computed_tokens));
      const std::size_t end = static_cast<std::size_t>(s.num_computed_tokens + s.num_scheduled_tokens);
      check(end <= s.tokens.size(), "the plan is longer than the sequence");
      for (std::size_t i = history.size(); i < end; ++i) history.push_back(fake_entry(s, static_cast<std::int64_t>(i)));
      if (!s.needs_logits) continue;
      check(end == s.tokens.size(), "logits were asked before the last token");
      append_fake_row(history, *faults_, logits_);
      ++rows;
    }
    faults_->live_sequences = static_cast<int>(histories_.size());
    return {.values = logits_, .vocab_size = kFakeVocab, .num_rows = rows};
  }

  std::int64_t block_bytes() const override { return 0; }
  void read_block(KvPlace /*place*/, std::span<std::byte> /*bytes*/) const override { check(false, "no blocks"); }
  void write_block(KvPlace /*place*/, std::span<const std::byte> /*bytes*/) override { check(false, "no blocks"); }
  runner::RunnerStats stats() const override { return {}; }
  std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const override {
    return std::make_shared<const FakeAdapter>(std::stoull(file.path));
  }
  void interrupt() override {}

 private:
  std::shared_ptr<Faults> faults_;
  runner::RunnerInfo info_;
  std::unordered_map<SequenceId, std::vector<TokenId>> histories_;
  std::vector<float> logits_;
  std::uint64_t num_copies_ = 0;
};

}  // namespace genai::engine
