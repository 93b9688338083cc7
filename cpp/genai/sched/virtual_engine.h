#pragma once

#include "genai/base/error.h"
#include "genai/sched/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace genai::sched {

/// What a sequence of a VirtualEngine is, and what became of it.
struct Job {
  std::vector<TokenId> tokens;
  std::size_t num_prompt = 0;
  std::int64_t max_total = 0;
  std::uint64_t seed = 0;  ///< two jobs with the same tokens and seed continue alike
  std::string salt;
  std::size_t stop_at = 0;  ///< number of tokens at which the engine stops it; 0 = never
  double first_token_time = -1.0;
  double finish_time = -1.0;
  std::optional<FinishReason> reason;
  std::size_t num_events = 0;  ///< times that it was finished or removed
};

/// For tests: drives a Scheduler in virtual time with a model whose KV at a position is a hash of all tokens so far and
/// whose next token is a function of the last position's KV. The KV lies in simulated tiers and is moved, copied and
/// shared as the scheduler's operations say, and all of it that a plan builds on is compared with what it must be.
/// Throws Error when a plan breaks a promise.
class VirtualEngine {
 public:
  VirtualEngine(SchedulerConfig config, kv::KvConfig kv, std::uint64_t seed = 1)
      : config_(config), kv_config_(kv), scheduler(config, kv), random(seed) {
    const auto places = [&](std::int64_t blocks) { return static_cast<std::size_t>(blocks * kv.block_size); };
    tiers_[0].resize(places(kv.num_hot_blocks));
    tiers_[1].resize(places(kv.num_warm_blocks));
    tiers_[2].resize(places(kv.num_cold_blocks));
  }

  SequenceId submit(Job job, int priority = 0) {
    const SequenceId id{next_id_++};
    job.num_prompt = job.tokens.size();
    scheduler.add({.id = id,
                   .prompt = job.tokens,
                   .max_total_tokens = job.max_total,
                   .priority = priority,
                   .cache_salt = job.salt},
                  now);
    jobs.emplace(id, std::move(job));
    return id;
  }

  /// Plans and runs one step; the number of tokens that ran.
  std::int64_t step() {
    now += seconds_per_step;
    const StepPlan plan = scheduler.schedule(now);
    check_plan(plan);
    if (!apply_ops()) return 0;
    if (chance(abandon_chance)) {
      scheduler.abandon();
      return 0;
    }
    has_run_.clear();
    for (const ScheduledSequence& share : plan.sequences) run(share);
    num_preemptions_ = scheduler.stats().num_preemptions;
    StepResult result;
    for (const ScheduledSequence& share : plan.sequences) {
      result.sequences.push_back(outcome_of(share.id, share.needs_logits));
    }
    for (const ScheduledSequence& share : plan.sequences) {
      if (share.needs_logits && chance(fork_chance)) fork_planned(share.id, result);
      if (chance(remove_chance)) remove(share.id);
    }
    const std::int64_t num_tokens = plan.num_tokens();
    for (const auto& finished : scheduler.update(result)) end(finished.id, finished.reason);
    if (chance(0.5)) apply_ops();
    return num_tokens;
  }

  /// Runs until all jobs have ended.
  void run_all(std::size_t max_steps) {
    for (std::size_t i = 0; num_unfinished() > 0; ++i) {
      check(i < max_steps, "a virtual run does not end");
      step();
      wake_idle(1.0);
    }
  }

  /// Starts a copy of a running sequence's first `num_tokens` tokens between two steps, followed by `more`.
  SequenceId fork(SequenceId parent, std::size_t num_tokens, std::span<const TokenId> more) {
    Job child = jobs.at(parent);
    child.tokens.resize(num_tokens);
    child.tokens.insert(child.tokens.end(), more.begin(), more.end());
    return add_fork(parent, std::move(child)).first;
  }

  void remove(SequenceId id) {
    check(scheduler.remove(id), "a sequence that did not end is unknown");
    end(id, FinishReason::kAbort);
  }

  /// Gives each idle sequence its next token, or ends it when it has no room for one.
  void wake_idle(double probability) {
    const std::vector<SequenceId> ids(idle_.begin(), idle_.end());
    for (const SequenceId id : ids) {
      if (!chance(probability)) continue;
      Job& job = jobs.at(id);
      if (std::ssize(job.tokens) + 1 >= job.max_total) {
        remove(id);
        continue;
      }
      idle_.erase(id);
      job.tokens.push_back(next_token(hash_of(job, job.tokens.size()), job.seed));
      scheduler.append(id, job.tokens.back());
    }
  }

  std::size_t num_unfinished() const { return jobs.size() - num_ended_; }

  /// Throws unless every job's tokens are those of a run alone and nobody holds KV.
  void check_end() {
    apply_ops();
    scheduler.kv().check_invariants();
    check(scheduler.kv().stats().hot_used == 0, "blocks are held at the end");
    check(scheduler.num_running() == 0 && scheduler.num_waiting() == 0, "sequences are left at the end");
    for (const auto& [id, job] : jobs) {
      check(job.num_events == 1, "a sequence did not end exactly once");
      std::uint64_t hash = start_hash(job);
      for (std::size_t i = 0; i < job.tokens.size(); ++i) {
        if (i >= job.num_prompt) check(job.tokens[i] == next_token(hash, job.seed), "a token differs from a run alone");
        hash = next_hash(hash, job.tokens[i]);
      }
    }
  }

  bool chance(double probability) {
    return probability > 0.0 && std::uniform_real_distribution(0.0, 1.0)(random) < probability;
  }

 private:
  const SchedulerConfig config_;
  const kv::KvConfig kv_config_;

 public:
  Scheduler scheduler;
  std::mt19937_64 random;
  std::unordered_map<SequenceId, Job> jobs;
  double now = 0.0;
  double seconds_per_step = 1.0;
  double abandon_chance = 0.0;
  double error_chance = 0.0;     ///< a planned sequence fails
  double fork_chance = 0.0;      ///< a sequence that samples is forked
  double idle_chance = 0.0;      ///< a sequence that samples gets no token
  double remove_chance = 0.0;    ///< a planned sequence is removed before update()
  double bad_move_chance = 0.0;  ///< a move between tiers fails

 private:
  static std::uint64_t next_hash(std::uint64_t hash, TokenId token) {
    hash = (hash ^ static_cast<std::uint64_t>(token + 1)) * 0x9E3779B97F4A7C15U;
    return hash ^ (hash >> 29);
  }
  static std::uint64_t start_hash(const Job& job) { return std::hash<std::string>{}(job.salt) | 1U; }
  static std::uint64_t hash_of(const Job& job, std::size_t num_tokens) {
    std::uint64_t hash = start_hash(job);
    for (std::size_t i = 0; i < num_tokens; ++i) hash = next_hash(hash, job.tokens[i]);
    return hash;
  }
  static TokenId next_token(std::uint64_t hash, std::uint64_t seed) {
    return static_cast<TokenId>(next_hash(hash ^ seed, 5) % 11);
  }

  void check_plan(const StepPlan& plan) const {
    std::set<SequenceId> ids;
    std::int64_t num_decodes = 0;
    std::int64_t num_prefill = 0;
    std::size_t num_prefills = 0;
    for (const ScheduledSequence& share : plan.sequences) {
      const Job& job = jobs.at(share.id);
      check(ids.insert(share.id).second, "a sequence is twice in a plan");
      check(!job.reason && !idle_.contains(share.id), "an ended or idle sequence is planned");
      check(std::ranges::equal(share.tokens, job.tokens), "a plan has other tokens");
      check(share.num_scheduled_tokens >= 1, "an empty share");
      const std::int64_t end = share.num_computed_tokens + share.num_scheduled_tokens;
      check(end <= std::ssize(job.tokens), "a share beyond the known tokens");
      check(share.needs_logits == (end == std::ssize(job.tokens)), "needs_logits is wrong");
      if (kv_config_.shares_blocks) {
        check(std::ssize(share.block_table) * kv_config_.block_size >= end, "a block table is too short");
      }
      if (share.num_computed_tokens + 1 == std::ssize(job.tokens)) {
        // One that was admitted again with all but one token found in the cache is no running answer.
        if (has_run_.contains(share.id) && num_preemptions_ == scheduler.stats().num_preemptions) ++num_decodes;
      } else {
        num_prefill += share.num_scheduled_tokens;
        ++num_prefills;
      }
    }
    check(plan.sequences.size() <= static_cast<std::size_t>(config_.max_num_seqs), "too many sequences");
    const bool is_whole_prompt = !config_.can_chunk_prefill && num_prefills == 1;
    if (!is_whole_prompt) {
      check(plan.num_tokens() <= config_.max_num_batched_tokens, "the token budget is exceeded");
      check(num_decodes == 0 || num_prefill <= config_.max_prefill_tokens_while_decoding,
            "the prefill beside decode rows is too long");
    }
  }

  std::vector<std::uint64_t>& tier(KvPlace place) { return tiers_[static_cast<std::size_t>(place.tier)]; }
  std::span<std::uint64_t> block(KvPlace place) {
    const std::size_t size = static_cast<std::size_t>(kv_config_.block_size);
    return std::span(tier(place)).subspan(static_cast<std::size_t>(place.index) * size, size);
  }

  /// False when one failed, and so the plan was abandoned.
  bool apply_ops() {
    std::vector<KvOp> failed;
    for (const KvOp& op : scheduler.take_kv_ops()) {
      switch (op.kind) {
        case KvOp::Kind::kMoveBlock:
          std::ranges::copy(block(op.from), block(op.to).begin());
          std::ranges::fill(block(op.from), 1);
          if (chance(bad_move_chance)) {
            std::ranges::fill(block(op.to), 2);
            failed.push_back(op);
          }
          break;
        case KvOp::Kind::kCopyBlock:
          std::ranges::copy(block(op.from), block(op.to).begin());
          break;
        case KvOp::Kind::kCopySequence: {
          std::vector<std::uint64_t> copy = contiguous_[op.parent];
          copy.resize(static_cast<std::size_t>(op.num_tokens));
          contiguous_[op.child] = std::move(copy);
          break;
        }
        case KvOp::Kind::kReleaseSequence:
          contiguous_.erase(op.parent);
          break;
      }
    }
    for (const KvOp& op : failed) scheduler.kv_failed(op);
    if (!failed.empty()) has_run_.clear();
    return failed.empty();
  }

  std::uint64_t& kv_at(const ScheduledSequence& share, std::size_t position) {
    if (!kv_config_.shares_blocks) {
      std::vector<std::uint64_t>& own = contiguous_[share.id];
      if (own.size() <= position) own.resize(position + 1);
      return own[position];
    }
    const std::size_t size = static_cast<std::size_t>(kv_config_.block_size);
    return block({KvTier::kHot, share.block_table[position / size]})[position % size];
  }

  void run(const ScheduledSequence& share) {
    const Job& job = jobs.at(share.id);
    const std::size_t computed = static_cast<std::size_t>(share.num_computed_tokens);
    const std::size_t end = computed + static_cast<std::size_t>(share.num_scheduled_tokens);
    std::uint64_t hash = start_hash(job);
    for (std::size_t i = 0; i < end; ++i) {
      hash = next_hash(hash, job.tokens[i]);
      if (i >= computed) kv_at(share, i) = hash;
    }
    has_run_.insert(share.id);
    last_kv_[share.id] = kv_at(share, end - 1);
    hash = start_hash(job);
    for (std::size_t i = 0; i < computed; ++i) {
      hash = next_hash(hash, job.tokens[i]);
      check(kv_at(share, i) == hash, "the KV that a plan builds on is wrong");
    }
  }

  SequenceResult outcome_of(SequenceId id, bool needs_logits) {
    if (chance(error_chance)) return {id, std::nullopt, FinishReason::kError};
    if (!needs_logits) return {id, std::nullopt, std::nullopt};
    Job& job = jobs.at(id);
    if (chance(idle_chance)) {
      idle_.insert(id);
      return {id, std::nullopt, std::nullopt};
    }
    check(scheduler.next_token_is_last(id) == (std::ssize(job.tokens) + 1 >= job.max_total), "next_token_is_last lies");
    job.tokens.push_back(next_token(last_kv_.at(id), job.seed));
    if (job.first_token_time < 0.0) job.first_token_time = now;
    const bool stops = job.stop_at > 0 && job.tokens.size() >= job.stop_at;
    return {id, job.tokens.back(), stops ? std::optional(FinishReason::kStop) : std::nullopt};
  }

  /// The id, and whether it runs.
  std::pair<SequenceId, bool> add_fork(SequenceId parent, Job child) {
    const SequenceId id{next_id_++};
    child.num_prompt = child.tokens.size();
    child.seed = id.value;
    child.first_token_time = -1.0;
    const bool runs = scheduler.fork(
        parent, {.id = id, .prompt = child.tokens, .max_total_tokens = child.max_total, .cache_salt = child.salt}, now);
    jobs.emplace(id, std::move(child));
    return {id, runs};
  }

  void fork_planned(SequenceId parent, StepResult& result) {
    Job child = jobs.at(parent);
    child.tokens = scheduler.tokens(parent);
    const bool is_same = chance(0.7);
    if (!is_same) child.tokens[random() % child.tokens.size()] = 10;
    const bool joins = child.tokens == scheduler.tokens(parent);
    const auto [id, runs] = add_fork(parent, std::move(child));
    if (!runs || !joins) return;
    last_kv_[id] = last_kv_.at(parent);
    // What a result does not name is planned again.
    if (!chance(0.1)) result.sequences.push_back(outcome_of(id, true));
  }

  void end(SequenceId id, FinishReason reason) {
    Job& job = jobs.at(id);
    job.reason = reason;
    job.finish_time = now;
    ++job.num_events;
    ++num_ended_;
    idle_.erase(id);
  }

  std::uint64_t next_id_ = 1;
  std::size_t num_ended_ = 0;
  std::set<SequenceId> idle_;
  std::vector<std::uint64_t> tiers_[3];
  std::unordered_map<SequenceId, std::vector<std::uint64_t>> contiguous_;
  std::unordered_map<SequenceId, std::uint64_t> last_kv_;
  std::set<SequenceId> has_run_;      ///< in the last step
  std::int64_t num_preemptions_ = 0;  ///< until then
};

}  // namespace genai::sched
