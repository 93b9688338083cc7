#pragma once

#include "genai/runner/test_models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace genai::runner {

inline KvOp copy_op(BlockId from, BlockId to) {
  return {.kind = KvOp::Kind::kCopyBlock, .from = {KvTier::kHot, from}, .to = {KvTier::kHot, to}};
}
inline KvOp move_op(KvPlace from, KvPlace to) {
  return {.kind = KvOp::Kind::kMoveBlock, .from = from, .to = to};
}

/// Shares, copies, moves and loses blocks of sequences at random, as a manager of KV would.
class Storm {
 public:
  Storm(ModelRunner& runner, std::uint32_t seed) : runner_(runner), random_(seed) {
    const RunnerInfo& info = runner.info();
    users_.resize(static_cast<std::size_t>(info.num_hot_blocks));
    for (std::int64_t i = 0; i < info.num_hot_blocks; ++i) free_.push_back(static_cast<BlockId>(i));
    for (std::int64_t i = 0; i < info.num_warm_blocks; ++i) {
      away_.push_back({KvTier::kWarm, static_cast<std::int32_t>(i)});
    }
    for (std::int64_t i = 0; i < info.num_cold_blocks; ++i) {
      away_.push_back({KvTier::kCold, static_cast<std::int32_t>(i)});
    }
  }

  template <typename NextId>
  void run(int num_steps, NextId next_id) {
    for (int step = 0; step < num_steps; ++step) {
      arrive();
      const std::vector<TestStep> steps = plan();
      REQUIRE(runner_.apply(ops_).empty());
      ops_.clear();
      if (!steps.empty()) run_step(runner_, steps, next_id);
      disturb();
    }
    REQUIRE(runner_.apply(ops_).empty());
    ops_.clear();
  }

  int num_forks = 0;
  int num_copies = 0;
  int num_moves = 0;
  int num_rewinds = 0;

 private:
  struct Live : TestSequence {
    std::vector<KvPlace> places;  ///< of its blocks while it is away
  };

  std::size_t below(std::size_t end) { return random_() % end; }
  std::int64_t up_to(std::int64_t end) { return 1 + static_cast<std::int64_t>(below(static_cast<std::size_t>(end))); }

  void arrive() {
    if (!live_.empty() && (live_.size() >= 6 || below(4) != 0)) return;
    auto sequence = std::make_unique<Live>();
    sequence->id = SequenceId{next_id_++};
    sequence->ids.resize(1 + below(40));
    for (TokenId& id : sequence->ids) id = static_cast<TokenId>(below(97));
    live_.push_back(std::move(sequence));
  }

  std::vector<TestStep> plan() {
    std::vector<TestStep> steps;
    for (const auto& sequence : live_) {
      if (below(5) == 0) continue;
      const std::int64_t left = sequence->num_left();
      const std::int64_t tokens = below(3) == 0 ? up_to(left) : left;
      if (come_back(*sequence) && make_room(*sequence, sequence->num_computed + tokens)) {
        steps.push_back({sequence.get(), tokens});
      }
    }
    std::shuffle(steps.begin(), steps.end(), random_);
    return steps;
  }

  /// Moves its blocks back to the hot tier; false when there is no room.
  bool come_back(Live& sequence) {
    if (sequence.places.size() > free_.size()) return false;
    for (const KvPlace place : sequence.places) {
      sequence.blocks.push_back(take());
      ops_.push_back(move_op(place, {KvTier::kHot, sequence.blocks.back()}));
      away_.push_back(place);
      ++num_moves;
    }
    sequence.places.clear();
    return true;
  }

  bool make_room(Live& sequence, std::int64_t end) {
    const std::int64_t size = runner_.info().block_size;
    const auto needed = static_cast<std::size_t>((end + size - 1) / size);
    const auto first = static_cast<std::size_t>(sequence.num_computed / size);  // the first that is written to
    if (free_.size() < needed - std::min(needed, first)) return false;
    for (std::size_t i = first; i < sequence.blocks.size(); ++i) {
      const BlockId shared = sequence.blocks[i];
      if (users_[static_cast<std::size_t>(shared)] == 1) continue;
      --users_[static_cast<std::size_t>(shared)];
      sequence.blocks[i] = take();
      ops_.push_back(copy_op(shared, sequence.blocks[i]));
      ++num_copies;
    }
    while (sequence.blocks.size() < needed) sequence.blocks.push_back(take());
    return true;
  }

  BlockId take() {
    const std::size_t index = below(free_.size());
    std::swap(free_[index], free_.back());
    const BlockId block = free_.back();
    free_.pop_back();
    users_[static_cast<std::size_t>(block)] = 1;
    return block;
  }
  void give_back(BlockId block) {
    if (--users_[static_cast<std::size_t>(block)] == 0) free_.push_back(block);
  }

  void disturb() {
    Live& any = *live_[below(live_.size())];
    const std::uint64_t action = below(8);
    if (action == 0 && any.num_computed > 0 && any.places.empty()) rewind(any);
    if (action == 1 && any.num_computed > 1 && any.places.empty()) fork(any);
    if (action <= 4 && action >= 2) leave(any);
    std::erase_if(live_, [this](const auto& sequence) {
      const bool ends = sequence->ids.size() > 90 || below(30) == 0;
      if (ends) {
        for (const BlockId block : sequence->blocks) give_back(block);
        away_.insert(away_.end(), sequence->places.begin(), sequence->places.end());
      }
      return ends;
    });
  }

  void rewind(Live& sequence) {
    sequence.num_computed = up_to(sequence.num_computed);
    if (below(2) == 0) {
      sequence.ids.resize(static_cast<std::size_t>(sequence.num_computed));
      sequence.ids.push_back(static_cast<TokenId>(below(97)));
    }
    const std::int64_t size = runner_.info().block_size;
    const auto kept = static_cast<std::size_t>((sequence.num_computed + size - 1) / size);
    while (sequence.blocks.size() > kept) {
      give_back(sequence.blocks.back());
      sequence.blocks.pop_back();
    }
    ++num_rewinds;
  }

  void fork(const Live& parent) {
    auto child = std::make_unique<Live>(parent);
    child->id = SequenceId{next_id_++};
    for (const BlockId block : child->blocks) ++users_[static_cast<std::size_t>(block)];
    live_.push_back(std::move(child));
    rewind(*live_.back());
    ++num_forks;
  }

  /// Moves all blocks of a sequence that shares none away.
  void leave(Live& sequence) {
    for (const BlockId block : sequence.blocks) {
      if (users_[static_cast<std::size_t>(block)] > 1 || away_.size() < sequence.blocks.size()) return;
    }
    for (const BlockId block : sequence.blocks) {
      const std::size_t index = below(away_.size());
      std::swap(away_[index], away_.back());
      ops_.push_back(move_op({KvTier::kHot, block}, away_.back()));
      sequence.places.push_back(away_.back());
      away_.pop_back();
      give_back(block);
      ++num_moves;
    }
    sequence.blocks.clear();
  }

  ModelRunner& runner_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Live>> live_;
  std::vector<int> users_;  ///< of each hot block
  std::vector<BlockId> free_;
  std::vector<KvPlace> away_;  ///< free places of the lower tiers
  std::vector<KvOp> ops_;
  std::uint64_t next_id_ = 1;
};

}  // namespace genai::runner
