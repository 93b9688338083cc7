#pragma once

#include "genai/base/error.h"
#include "genai/base/random.h"
#include "genai/engine/fake_model.h"
#include "genai/runner/model_runner.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace genai::engine {

/// Size of a fake paged decoder.
struct FakePagedSize {
  int block_size = 4;
  std::int64_t num_hot_blocks = 64;
  std::int64_t num_warm_blocks = 0;
  std::int64_t num_cold_blocks = 0;
};

/// A decoder with KV in blocks for tests. The "KV" of a position is its token and its position. Logits come from what
/// stands in the blocks of the table and from nothing else, so that any mix-up of blocks shows in the tokens; what is
/// moved away or lost is overwritten.
class FakePagedRunner final : public runner::ModelRunner {
 public:
  explicit FakePagedRunner(std::shared_ptr<Faults> faults, FakePagedSize size = {}) : faults_(std::move(faults)) {
    info_.decoder = "fake paged";
    info_.vocab_size = kFakeVocab;
    info_.kv_bytes_per_token = sizeof(Entry);
    info_.shares_blocks = true;
    info_.block_size = size.block_size;
    info_.num_hot_blocks = size.num_hot_blocks;
    info_.num_warm_blocks = size.num_warm_blocks;
    info_.num_cold_blocks = size.num_cold_blocks;
    const std::array counts = {size.num_hot_blocks, size.num_warm_blocks, size.num_cold_blocks};
    for (std::size_t i = 0; i < tiers_.size(); ++i) {
      tiers_[i].resize(static_cast<std::size_t>(counts[i] * size.block_size));
    }
  }

  const runner::RunnerInfo& info() const override { return info_; }

  std::vector<runner::KvFailure> apply(std::span<const KvOp> ops) override {
    if (faults_->throw_in_apply > 0) {
      --faults_->throw_in_apply;
      throw Error(ErrorCode::kResourceExhausted, "fake failure of apply");
    }
    std::vector<runner::KvFailure> failures;
    for (const KvOp& op : ops) {
      check(op.kind == KvOp::Kind::kCopyBlock || op.kind == KvOp::Kind::kMoveBlock,
            "a paged decoder knows no sequences");
      const std::span<Entry> from = block(op.from);
      const std::span<Entry> to = block(op.to);
      std::ranges::copy(from, to.begin());
      if (op.kind == KvOp::Kind::kCopyBlock) continue;
      std::ranges::fill(from, Entry{});
      if (!move_fails(op)) continue;
      std::ranges::fill(to, Entry{});
      ++faults_->num_failed_moves;
      failures.push_back({op, "fake failure of a move"});
    }
    return failures;
  }

  StepLogits execute(const StepPlan& plan) override {
    check_one_adapter(plan);
    ++faults_->num_executes;
    throw_faults(plan, *faults_);
    // All write first, as in one run of a graph layer: who writes into a block of another one spoils it.
    for (const ScheduledSequence& s : plan.sequences) {
      for (std::int64_t i = s.num_computed_tokens; i < s.num_computed_tokens + s.num_scheduled_tokens; ++i) {
        at(s, i) = {fake_entry(s, i), static_cast<std::int32_t>(i)};
      }
    }
    logits_.clear();
    std::int64_t rows = 0;
    for (const ScheduledSequence& s : plan.sequences) {
      const std::int64_t end = s.num_computed_tokens + s.num_scheduled_tokens;
      history_.clear();
      bool is_right = true;
      for (std::int64_t i = 0; i < end; ++i) {
        const Entry& entry = at(s, i);
        is_right = is_right && entry.position == i && entry.token == fake_entry(s, i);
        history_.push_back(entry.token);
      }
      if (!is_right) ++faults_->num_mix_ups;
      if (!s.needs_logits) continue;
      append_fake_row(history_, *faults_, logits_);
      ++rows;
    }
    return {.values = logits_, .vocab_size = kFakeVocab, .num_rows = rows};
  }

  std::int64_t block_bytes() const override { return info_.block_size * static_cast<std::int64_t>(sizeof(Entry)); }
  void read_block(KvPlace place, std::span<std::byte> bytes) const override {
    const std::span<const Entry> entries = block(place);
    check(bytes.size() == entries.size_bytes(), "wrong size of a block");
    std::memcpy(bytes.data(), entries.data(), bytes.size());
  }
  void write_block(KvPlace place, std::span<const std::byte> bytes) override {
    const std::span<Entry> entries = block(place);
    check(bytes.size() == entries.size_bytes(), "wrong size of a block");
    std::memcpy(entries.data(), bytes.data(), bytes.size());
  }
  runner::RunnerStats stats() const override { return {}; }
  std::shared_ptr<const Adapter> load_adapter(const AdapterFile& file) const override {
    return std::make_shared<const FakeAdapter>(std::stoull(file.path));
  }
  void interrupt() override {}

 private:
  struct Entry {
    TokenId token = 0;
    std::int32_t position = -1;
  };

  template <typename Self>
  static auto block_of(Self& self, KvPlace place) {
    const auto size = static_cast<std::size_t>(self.info_.block_size);
    auto& tier = self.tiers_.at(static_cast<std::size_t>(place.tier));
    const std::size_t start = static_cast<std::size_t>(place.index) * size;
    check(place.index >= 0 && start + size <= tier.size(), "a block that its tier does not have");
    return std::span(tier).subspan(start, size);
  }
  std::span<Entry> block(KvPlace place) { return block_of(*this, place); }
  std::span<const Entry> block(KvPlace place) const { return block_of(*this, place); }

  Entry& at(const ScheduledSequence& s, std::int64_t position) {
    const auto index = static_cast<std::size_t>(position / info_.block_size);
    check(index < s.block_table.size(), "a block table is too short");
    return block({KvTier::kHot, s.block_table[index]})[static_cast<std::size_t>(position % info_.block_size)];
  }

  bool move_fails(const KvOp& op) {
    if (op.from.tier != KvTier::kCold && op.to.tier != KvTier::kCold) return false;
    return uniform_at(7, 0, num_moves_++) * 1000 < faults_->fail_moves_in_1000;
  }

  std::shared_ptr<Faults> faults_;
  runner::RunnerInfo info_;
  std::array<std::vector<Entry>, 3> tiers_;  ///< by KvTier, [blocks * block_size]
  std::vector<TokenId> history_;
  std::vector<float> logits_;
  std::uint64_t num_moves_ = 0;
};

}  // namespace genai::engine
