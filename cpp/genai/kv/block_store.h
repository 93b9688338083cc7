#pragma once

#include "genai/base/ids.h"
#include "genai/core/kv.h"
#include "genai/kv/block_pool.h"
#include "genai/kv/kv_manager.h"
#include "genai/kv/prefix_index.h"
#include "genai/kv/prefix_key.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace genai::kv {

/// The places of all tiers and the prefixes whose KV lies there: what is evicted, and where to. Knows no sequences,
/// only how many hold a block. Each change of a place is followed at once by its KvOp, so the list can be carried out
/// in order. One thread.
class BlockStore {
 public:
  using ChildKey = PrefixKey (*)(const PrefixKey& parent, std::span<const TokenId> tokens);

  /// make_key: another function than child_key() only to test what happens when keys collide.
  explicit BlockStore(const KvConfig& config, ChildKey make_key = &child_key);

  /// Hot blocks that nobody holds, so that so many allocate() calls succeed.
  std::int64_t num_available() const { return hot().num_available(); }
  /// A hot block with one holder; what was cached there moves down or is dropped. Requires: num_available() > 0.
  BlockId allocate();
  void add_ref(BlockId block) { hot().add_ref(block); }
  void release(BlockId block) {
    hot().release(block);
    if (hot().num_refs(block) == 0) ++totals_.freed_blocks;
  }
  /// Whether its only holder may write to it.
  bool is_writable(BlockId block) const { return hot().num_refs(block) == 1 && !hot().is_findable(block); }
  bool is_shared(BlockId block) const { return hot().num_refs(block) > 1; }
  bool is_findable(BlockId block) const { return hot().is_findable(block); }
  void copy(BlockId from, BlockId to);
  /// The block cannot be found any more, nor can what follows it. Requires: findable.
  void unpublish(BlockId block);
  void add_op(const KvOp& op) { ops_.push_back(op); }

  /// Entries of the longest stored prefix of `tokens`, at most `max_blocks`.
  std::vector<EntryRef> match(std::span<const TokenId> tokens, std::string_view salt, std::size_t max_blocks) const;
  /// Makes the caller a holder of the blocks of as many of the entries as have room, from the first on; those in lower
  /// tiers move up. Requires: entries as match() gives them, and nothing has changed since.
  std::vector<BlockId> acquire(std::span<const EntryRef> entries);
  /// Makes a block findable as the one with `tokens` below `parent` (no entry: the first block of `salt`). Returns the
  /// entry with that prefix, and none if another prefix has its key. If it is stored already where somebody holds it,
  /// the block stays as it is; where nobody holds it, the block takes its place.
  /// Requires: the block is held, and not findable under another prefix; `tokens`: block_size ids.
  EntryRef publish(const EntryRef& parent, std::string_view salt, std::span<const TokenId> tokens, BlockId block);
  bool is_alive(const EntryRef& entry) const { return index_.is_alive(entry); }
  EntryRef parent(const EntryRef& entry) const { return index_.parent(entry); }
  const KvPlace& place(const EntryRef& entry) const { return index_.place(entry); }

  /// As KvManager::insert().
  std::vector<KvManager::Slot> insert(std::span<const TokenId> tokens, std::string_view salt);
  void clear_cache();

  std::vector<KvOp> take_ops();
  /// Drops everything that a failed move spoils: what lies at its target, and what later operations made from it.
  /// Returns the hot blocks among those places, ascending.
  std::vector<BlockId> move_failed(const KvOp& op);
  void set_costs(SwapCosts costs) { costs_ = costs; }

  void count_failed_reserve() { ++totals_.failed_reserves; }
  /// The part of KvStats that concerns blocks.
  KvStats stats() const;
  void check_invariants() const;
  std::int32_t num_refs(BlockId block) const { return hot().num_refs(block); }

 private:
  BlockPool& pool(KvTier tier) { return pools_[static_cast<std::size_t>(tier)]; }
  const BlockPool& pool(KvTier tier) const { return pools_[static_cast<std::size_t>(tier)]; }
  BlockPool& hot() { return pool(KvTier::kHot); }
  const BlockPool& hot() const { return pool(KvTier::kHot); }

  bool make_room(KvTier tier);
  void evict(const KvPlace& place);
  void move(const EntryRef& entry, const KvPlace& to);
  std::int64_t drop(const EntryRef& entry);

  std::size_t block_size_;
  ChildKey make_key_;
  std::array<BlockPool, 3> pools_;  ///< in the order of KvTier
  PrefixIndex index_;
  SwapCosts costs_;
  KvStats totals_;
  std::vector<KvOp> ops_;
  std::vector<KvOp> taken_ops_;  ///< of the last take_ops()
};

}  // namespace genai::kv
