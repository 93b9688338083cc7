// Random operations against a plain model that keeps what lies at each place: what a sequence reads through its table
// must be what was computed for its own tokens, whatever was shared, copied, evicted, moved or lost in between.

#include "genai/kv/kv_manager.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace genai::kv {
namespace {

using Tokens = std::vector<TokenId>;

/// KV of one position: everything that it depends on. Empty: never computed, or lost.
struct Cell {
  std::string salt;
  Tokens prefix;
  friend bool operator==(const Cell&, const Cell&) = default;
};
using Block = std::vector<std::optional<Cell>>;

struct Options {
  KvConfig config;
  double failure_rate = 0.0;
  int num_batches = 400;
  int max_actions = 4;  ///< of a batch; then its operations are carried out and what was reserved is written
  std::size_t max_sequences = 6;
  std::size_t max_tokens = 18;
  bool has_room_for_all = false;  ///< nothing is ever evicted, so a start must find all that was ever written
};

class Storm {
 public:
  Storm(const Options& options, unsigned seed)
      : options_(options), config_(options.config), manager_(options.config), random_(seed) {
    const std::array sizes{config_.num_hot_blocks, config_.num_warm_blocks, config_.num_cold_blocks};
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
      tiers_[tier].resize(static_cast<std::size_t>(sizes[tier]), Block(static_cast<std::size_t>(config_.block_size)));
    }
  }

  void run() {
    for (int i = 0; i < options_.num_batches; ++i) {
      const int num_actions = below(options_.max_actions + 1);
      for (int action = 0; action < num_actions; ++action) act();
      apply_ops();
      write_pending();
      while (apply_ops()) {
      }
      verify();
    }
    while (!sequences_.empty()) release(sequences_.begin()->first);
    CHECK(manager_.stats().hot_used == 0);
    manager_.clear_cache();
    manager_.check_invariants();
    const KvStats stats = manager_.stats();
    CHECK(stats.hot_cached + stats.warm_used + stats.cold_used == 0);
    CHECK(manager_.could_hold(manager_.capacity_tokens()));
  }

  KvStats stats() const { return manager_.stats(); }

 private:
  struct Model {
    Tokens tokens;  ///< all known ids; the first `length` are written
    std::string salt;
    std::int64_t length = 0;
    std::int64_t pending = 0;  ///< reserved to this length and written at the end of the batch; 0 = not
  };
  using Sequences = std::map<SequenceId, Model>;

  int below(int limit) { return std::uniform_int_distribution(0, limit - 1)(random_); }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  Block& block(const KvPlace& place) {
    return tiers_[static_cast<std::size_t>(place.tier)][static_cast<std::size_t>(place.index)];
  }

  /// Few different ids, so that prefixes are shared often.
  Tokens random_tokens(std::size_t size) {
    Tokens tokens(size);
    for (TokenId& token : tokens) token = chance(0.85) ? 7 : 8;
    return tokens;
  }

  std::optional<Sequences::iterator> random_sequence() {
    if (sequences_.empty()) return std::nullopt;
    return std::next(sequences_.begin(), below(static_cast<int>(sequences_.size())));
  }

  static Cell cell(const Tokens& tokens, const std::string& salt, std::int64_t position) {
    return {.salt = salt, .prefix = Tokens(tokens.begin(), tokens.begin() + position + 1)};
  }

  void act() {
    const int dice = below(100);
    if (dice < 22) return start();
    if (dice < 29) return insert();
    if (dice < 30 && !options_.has_room_for_all) return manager_.clear_cache();
    if (dice < 33) return manager_.set_costs({.move_seconds = chance(0.2) ? 2.0 : 0.1, .recompute_seconds = 1.0});
    const auto it = random_sequence();
    if (!it) return;
    if (dice < 70) return reserve((*it)->second, (*it)->first);
    if (dice < 80) return fork((*it)->first, (*it)->second);
    if (dice < 90) return rewind((*it)->first, (*it)->second);
    release((*it)->first);
  }

  void start() {
    if (sequences_.size() >= options_.max_sequences) return;
    const SequenceId id{++last_id_};
    Model model{.tokens = random_tokens(1 + static_cast<std::size_t>(below(static_cast<int>(options_.max_tokens)))),
                .salt = chance(0.2) ? "other" : ""};
    const std::size_t num_found = manager_.find(model.tokens, model.salt).size();
    model.length = manager_.start(id, model.tokens, model.salt);
    CHECK(model.length % config_.block_size == 0);
    CHECK(model.length < std::ssize(model.tokens));
    CHECK(model.length <= static_cast<std::int64_t>(num_found) * config_.block_size);
    CHECK(manager_.length(id) == model.length);
    if (options_.has_room_for_all) CHECK(model.length == expected_hit(model));
    sequences_.emplace(id, std::move(model));
  }

  std::int64_t expected_hit(const Model& model) const {
    std::int64_t hit = 0;
    const auto is_written = [&](std::int64_t size) {
      return written_.contains({model.salt, Tokens(model.tokens.begin(), model.tokens.begin() + size)});
    };
    while (hit + config_.block_size < std::ssize(model.tokens) && is_written(hit + config_.block_size)) {
      hit += config_.block_size;
    }
    return hit;
  }

  void note_written(const Tokens& tokens, const std::string& salt, std::int64_t length) {
    if (!options_.has_room_for_all) return;
    for (std::int64_t size = config_.block_size; size <= length; size += config_.block_size) {
      written_.insert({salt, Tokens(tokens.begin(), tokens.begin() + size)});
    }
  }

  void insert() {
    const Tokens tokens = random_tokens(static_cast<std::size_t>(below(static_cast<int>(options_.max_tokens))));
    const std::vector<KvManager::Slot> slots = manager_.insert(tokens, "");
    apply_ops();
    note_written(tokens, "", std::ssize(tokens));
    const std::int64_t size = config_.block_size;
    for (std::int64_t i = 0; i < std::ssize(slots); ++i) {
      const KvManager::Slot& slot = slots[static_cast<std::size_t>(i)];
      if (!slot.is_new) continue;
      for (std::int64_t k = 0; k < size; ++k) {
        block(slot.place)[static_cast<std::size_t>(k)] = cell(tokens, "", i * size + k);
      }
    }
  }

  /// Blocks that the sequence needs beside its table.
  std::int64_t missing_blocks(SequenceId id, std::int64_t num_tokens) const {
    const std::int64_t num_blocks = (num_tokens + config_.block_size - 1) / config_.block_size;
    return num_blocks - std::ssize(manager_.block_table(id));
  }

  std::map<BlockId, int> holders() const {
    std::map<BlockId, int> holders;
    for (const auto& [id, model] : sequences_) {
      for (const BlockId block : manager_.block_table(id)) ++holders[block];
    }
    return holders;
  }

  void reserve(Model& model, SequenceId id) {
    if (model.tokens.size() == static_cast<std::size_t>(model.length)) {
      if (model.tokens.size() >= options_.max_tokens) return;
      const Tokens more = random_tokens(1 + static_cast<std::size_t>(below(4)));
      model.tokens.insert(model.tokens.end(), more.begin(), more.end());
    }
    const std::int64_t num_tokens = model.length + 1 + below(static_cast<int>(std::ssize(model.tokens) - model.length));
    const std::int64_t available = config_.num_hot_blocks - std::ssize(holders());
    const std::span<const BlockId> table = manager_.block_table(id);
    const std::vector<BlockId> before(table.begin(), table.end());
    const std::int64_t num_missing = std::max<std::int64_t>(0, missing_blocks(id, num_tokens));
    const std::size_t first = static_cast<std::size_t>(model.length / config_.block_size);
    const bool is_shared = first < before.size() && holders()[before[first]] > 1;

    const bool fits = manager_.reserve(id, num_tokens);

    CHECK(fits == (num_missing + (is_shared ? 1 : 0) <= available));
    if (!fits) CHECK(std::ranges::equal(manager_.block_table(id), before));
    if (fits) model.pending = num_tokens;
  }

  void fork(SequenceId parent, const Model& model) {
    if (sequences_.size() >= options_.max_sequences) return;
    const SequenceId id{++last_id_};
    const std::int64_t num_tokens = below(static_cast<int>(model.length) + 1);
    CHECK(manager_.fork(parent, id, num_tokens));
    Model child{.tokens = Tokens(model.tokens.begin(), model.tokens.begin() + num_tokens),
                .salt = model.salt,
                .length = num_tokens};
    const Tokens more = random_tokens(1 + static_cast<std::size_t>(below(3)));
    child.tokens.insert(child.tokens.end(), more.begin(), more.end());
    sequences_.emplace(id, std::move(child));
  }

  void rewind(SequenceId id, Model& model) {
    model.length = below(static_cast<int>(model.length) + 1);
    model.pending = 0;
    manager_.rewind(id, model.length);
    const Tokens more = random_tokens(1 + static_cast<std::size_t>(below(3)));
    if (chance(0.5)) {
      model.tokens.resize(static_cast<std::size_t>(model.length));
      model.tokens.insert(model.tokens.end(), more.begin(), more.end());
    }
  }

  void release(SequenceId id) {
    manager_.release(id);
    sequences_.erase(id);
  }

  /// False if there was nothing to do.
  bool apply_ops() {
    std::vector<KvOp> failed;
    const Block empty(static_cast<std::size_t>(config_.block_size));
    const std::vector<KvOp> ops = manager_.take_ops();
    for (const KvOp& op : ops) {
      REQUIRE((op.kind == KvOp::Kind::kCopyBlock || op.kind == KvOp::Kind::kMoveBlock));
      if (op.kind == KvOp::Kind::kCopyBlock) {
        block(op.to) = block(op.from);
        continue;
      }
      const bool is_empty = op.from.tier != KvTier::kHot && block(op.from) == empty;
      CHECK((!is_empty || options_.failure_rate > 0.0));
      const bool fails = is_empty || chance(options_.failure_rate);
      block(op.to) = fails ? empty : block(op.from);
      block(op.from) = empty;
      if (fails) failed.push_back(op);
    }
    for (const KvOp& op : failed) {
      for (const SequenceId id : manager_.move_failed(op)) release(id);
      // Operations may be waiting while further failures are reported.
      if (chance(0.3)) start();
      manager_.check_invariants();
    }
    return !ops.empty();
  }

  void write_pending() {
    for (auto& [id, model] : sequences_) {
      if (model.pending == 0) continue;
      const std::span<const BlockId> table = manager_.block_table(id);
      for (std::int64_t i = model.length; i < model.pending; ++i) {
        const BlockId index = table[static_cast<std::size_t>(i / config_.block_size)];
        block({.tier = KvTier::kHot, .index = index})[static_cast<std::size_t>(i % config_.block_size)] =
            cell(model.tokens, model.salt, i);
      }
      model.length = model.pending;
      model.pending = 0;
      note_written(model.tokens, model.salt, model.length);
      manager_.written(id, std::span(model.tokens).first(static_cast<std::size_t>(model.length)));
    }
  }

  void verify() {
    manager_.check_invariants();
    const KvStats stats = manager_.stats();
    CHECK(stats.hot_used == std::ssize(holders()));
    CHECK(stats.hot_used == stats.allocated_blocks - stats.freed_blocks);
    CHECK(stats.hot_used + stats.hot_cached <= config_.num_hot_blocks);
    CHECK(stats.warm_used <= config_.num_warm_blocks);
    CHECK(stats.cold_used <= config_.num_cold_blocks);
    for (const auto& [id, model] : sequences_) {
      REQUIRE(manager_.length(id) == model.length);
      const std::span<const BlockId> table = manager_.block_table(id);
      bool is_right = true;
      for (std::int64_t i = 0; i < model.length; ++i) {
        const BlockId index = table[static_cast<std::size_t>(i / config_.block_size)];
        is_right = is_right &&
                   block({.tier = KvTier::kHot, .index = index})[static_cast<std::size_t>(i % config_.block_size)] ==
                       cell(model.tokens, model.salt, i);
      }
      CHECK(is_right);
    }
    verify_cache(random_tokens(options_.max_tokens));
  }

  void verify_cache(const Tokens& tokens) {
    bool is_right = true;
    const std::vector<KvPlace> places = manager_.find(tokens, "");
    for (std::int64_t i = 0; i < std::ssize(places) * config_.block_size; ++i) {
      is_right = is_right && block(places[static_cast<std::size_t>(i / config_.block_size)])[static_cast<std::size_t>(
                                 i % config_.block_size)] == cell(tokens, "", i);
    }
    CHECK(is_right);
  }

  Options options_;
  KvConfig config_;
  KvManager manager_;
  std::mt19937 random_;
  std::array<std::vector<Block>, 3> tiers_;
  Sequences sequences_;
  std::set<std::pair<std::string, Tokens>> written_;  ///< full blocks' prefixes, with has_room_for_all
  std::uint64_t last_id_ = 0;
};

/// Many short storms; returns the sums of what happened, so that a test can say that it happened at all.
KvStats storms(const Options& options, unsigned num_seeds) {
  KvStats sum;
  for (unsigned seed = 1; seed <= num_seeds; ++seed) {
    CAPTURE(seed);
    Storm storm(options, seed);
    storm.run();
    const KvStats stats = storm.stats();
    sum.prefix_hit_tokens += stats.prefix_hit_tokens;
    sum.evicted_blocks += stats.evicted_blocks;
    sum.swapped_out_blocks += stats.swapped_out_blocks;
    sum.swapped_in_blocks += stats.swapped_in_blocks;
    sum.copied_blocks += stats.copied_blocks;
    sum.failed_moves += stats.failed_moves;
  }
  return sum;
}

TEST_CASE("RandomOperations_HotTierOnly_TablesReadOwnTokens") {
  const KvStats sum = storms({.config = {.block_size = 2, .num_hot_blocks = 12}}, 40);

  CHECK(sum.prefix_hit_tokens > 0);
  CHECK(sum.evicted_blocks > 0);
  CHECK(sum.copied_blocks > 0);
  CHECK(sum.swapped_out_blocks == 0);
}

TEST_CASE("RandomOperations_RoomForAll_StartFindsAllThatWasEverWritten") {
  const KvStats sum =
      storms({.config = {.block_size = 2, .num_hot_blocks = 3000}, .num_batches = 150, .has_room_for_all = true}, 6);

  CHECK(sum.prefix_hit_tokens > 0);
  CHECK(sum.evicted_blocks == 0);
}

TEST_CASE("RandomOperations_TinyPool_TablesReadOwnTokens") {
  storms({.config = {.block_size = 3, .num_hot_blocks = 4}, .max_tokens = 12}, 40);
  storms({.config = {.block_size = 1, .num_hot_blocks = 5}, .max_tokens = 8}, 20);
}

TEST_CASE("RandomOperations_WarmTier_TablesReadOwnTokens") {
  const KvStats sum = storms({.config = {.block_size = 2, .num_hot_blocks = 8, .num_warm_blocks = 5}}, 40);

  CHECK(sum.swapped_out_blocks > 0);
  CHECK(sum.swapped_in_blocks > 0);
  CHECK(sum.evicted_blocks > 0);
}

TEST_CASE("RandomOperations_ColdTierOnly_TablesReadOwnTokens") {
  const KvStats sum = storms({.config = {.block_size = 4, .num_hot_blocks = 6, .num_cold_blocks = 4}}, 40);

  CHECK(sum.swapped_in_blocks > 0);
}

TEST_CASE("RandomOperations_AllTiers_TablesReadOwnTokens") {
  const KvStats sum =
      storms({.config = {.block_size = 2, .num_hot_blocks = 7, .num_warm_blocks = 3, .num_cold_blocks = 6}}, 60);

  CHECK(sum.swapped_in_blocks > 0);
  CHECK(sum.evicted_blocks > 0);
}

TEST_CASE("RandomOperations_MovesFail_TablesReadOwnTokens") {
  const KvConfig config{.block_size = 2, .num_hot_blocks = 8, .num_warm_blocks = 3, .num_cold_blocks = 4};

  const KvStats sum = storms({.config = config, .failure_rate = 0.2}, 40);
  CHECK(sum.failed_moves > 0);
  CHECK(sum.swapped_in_blocks > 0);
  // Long batches: a block moves several times, and is copied, before its first move turns out to have failed.
  storms({.config = config, .failure_rate = 0.1, .max_actions = 20}, 40);
  KvConfig wide = config;
  wide.block_size = 4;
  storms({.config = wide, .failure_rate = 0.1, .max_actions = 20}, 40);
}

/// Contiguous KV: a plain count for each sequence, and the set of those that the runner knows.
void contiguous_storm(unsigned seed) {
  constexpr std::int64_t kBlockSize = 4;
  constexpr std::int64_t kNumBlocks = 9;
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t limit) {
    return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random);
  };
  KvManager manager({.block_size = kBlockSize, .num_hot_blocks = kNumBlocks, .shares_blocks = false});
  struct Model {
    std::int64_t length = 0;
    std::int64_t reserved = 0;
  };
  std::map<SequenceId, Model> sequences;
  std::set<SequenceId> known;  // by the runner
  const auto blocks = [](std::int64_t num_tokens) { return (num_tokens + kBlockSize - 1) / kBlockSize; };
  const auto used = [&] {
    std::int64_t sum = 0;
    for (const auto& [id, model] : sequences) sum += blocks(model.reserved);
    return sum;
  };
  const auto apply = [&] {
    for (const KvOp& op : manager.take_ops()) {
      if (op.kind == KvOp::Kind::kCopySequence) {
        CHECK(known.contains(op.parent));
        CHECK(known.insert(op.child).second);
      } else {
        REQUIRE(op.kind == KvOp::Kind::kReleaseSequence);
        known.erase(op.parent);
      }
    }
  };

  for (std::uint64_t i = 1; i < 2000; ++i) {
    if (sequences.empty() || below(5) == 0) {
      CHECK(manager.start(SequenceId{i}, Tokens(5, 1), "") == 0);
      sequences[SequenceId{i}] = {};
    }
    const auto it = std::next(sequences.begin(), below(std::ssize(sequences)));
    const SequenceId id = it->first;
    Model& model = it->second;
    const std::int64_t dice = below(10);
    if (dice < 5) {
      const std::int64_t wanted = model.length + 1 + below(7);
      const std::int64_t missing = std::max<std::int64_t>(0, blocks(wanted) - blocks(model.reserved));
      const bool fits = manager.reserve(id, wanted);
      CHECK(fits == (used() + missing <= kNumBlocks));
      if (fits) {
        model.reserved = std::max(model.reserved, wanted);
        apply();
        known.insert(id);
        model.length = wanted;
        manager.written(id, Tokens(static_cast<std::size_t>(wanted), 1));
      }
    } else if (dice < 6) {
      model.length = model.reserved = below(model.length + 1);
      manager.rewind(id, model.length);
    } else if (dice < 7) {
      const SequenceId child{100000 + i};
      const std::int64_t num_tokens = below(model.length + 1);
      const bool fits = manager.fork(id, child, num_tokens);
      CHECK(fits == (used() + blocks(num_tokens) <= kNumBlocks));
      if (fits) sequences[child] = {.length = num_tokens, .reserved = num_tokens};
    } else {
      manager.release(id);
      sequences.erase(it);
    }
    CHECK(manager.stats().hot_used == used());
    manager.check_invariants();
  }
  for (const auto& [id, model] : sequences) manager.release(id);
  apply();
  CHECK(known.empty());
  CHECK(manager.stats().hot_used == 0);
}

TEST_CASE("RandomOperations_ContiguousKv_CountsAndOperationsAddUp") {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    contiguous_storm(seed);
  }
}

TEST_CASE("RandomOperations_NoPrefixCache_TablesReadOwnTokens") {
  const KvStats sum = storms({.config = {.block_size = 2, .num_hot_blocks = 12, .prefix_cache = false}}, 20);

  CHECK(sum.prefix_hit_tokens == 0);
  CHECK(sum.copied_blocks > 0);
}

}  // namespace
}  // namespace genai::kv
