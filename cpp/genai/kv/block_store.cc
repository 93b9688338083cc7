#include "genai/kv/block_store.h"

#include "genai/base/error.h"

#include <algorithm>
#include <set>
#include <utility>

namespace genai::kv {
namespace {

constexpr std::array kTiers{KvTier::kHot, KvTier::kWarm, KvTier::kCold};

bool copies_bytes(const KvOp& op) {
  return op.kind == KvOp::Kind::kCopyBlock || op.kind == KvOp::Kind::kMoveBlock;
}

}  // namespace

BlockStore::BlockStore(const KvConfig& config, ChildKey make_key)
    : block_size_(static_cast<std::size_t>(config.block_size)),
      make_key_(make_key),
      pools_{BlockPool(config.num_hot_blocks), BlockPool(config.num_warm_blocks), BlockPool(config.num_cold_blocks)},
      index_(block_size_, {config.num_hot_blocks, config.num_warm_blocks, config.num_cold_blocks}) {}

BlockId BlockStore::allocate() {
  check(make_room(KvTier::kHot), "no block is available");
  ++totals_.allocated_blocks;
  return hot().allocate();
}

void BlockStore::copy(BlockId from, BlockId to) {
  ops_.push_back({.kind = KvOp::Kind::kCopyBlock,
                  .from = {.tier = KvTier::kHot, .index = from},
                  .to = {.tier = KvTier::kHot, .index = to},
                  .parent = {},
                  .child = {}});
  ++totals_.copied_blocks;
}

void BlockStore::unpublish(BlockId block) {
  totals_.evicted_blocks += drop(index_.at_place({.tier = KvTier::kHot, .index = block}));
}

/// Whether a place of the tier is free now, if need be by evicting.
bool BlockStore::make_room(KvTier tier) {
  const BlockPool& places = pool(tier);
  if (places.num_available() == 0) return false;
  if (places.is_cached(places.front())) evict({.tier = tier, .index = places.front()});
  return true;
}

/// Frees a cached place.
void BlockStore::evict(const KvPlace& place) {
  const EntryRef entry = index_.at_place(place);
  if (costs_.move_seconds < costs_.recompute_seconds) {
    for (const KvTier tier : kTiers) {
      if (tier <= place.tier || !make_room(tier)) continue;
      // The room may have come from dropping something above this entry, and the entry with it.
      if (!index_.is_alive(entry)) return;
      const std::int32_t target = pool(tier).allocate();
      move(entry, {.tier = tier, .index = target});
      pool(tier).release(target);
      return;
    }
  }
  totals_.evicted_blocks += drop(entry);
}

void BlockStore::move(const EntryRef& entry, const KvPlace& to) {
  const KvPlace from = index_.place(entry);
  ops_.push_back({.kind = KvOp::Kind::kMoveBlock, .from = from, .to = to, .parent = {}, .child = {}});
  index_.set_place(entry, to);
  pool(from.tier).set_findable(from.index, false);
  pool(to.tier).set_findable(to.index, true);
  if (from.tier == KvTier::kHot) ++totals_.swapped_out_blocks;
  if (to.tier == KvTier::kHot) ++totals_.swapped_in_blocks;
  if (to.tier == KvTier::kCold) ++totals_.cold_writes;
  if (from.tier == KvTier::kCold) ++totals_.cold_reads;
}

/// Returns how many of the dropped blocks nobody held.
std::int64_t BlockStore::drop(const EntryRef& entry) {
  std::int64_t num_cached = 0;
  for (const KvPlace& place : index_.drop(entry)) {
    if (pool(place.tier).is_cached(place.index)) ++num_cached;
    pool(place.tier).set_findable(place.index, false);
  }
  return num_cached;
}

std::vector<EntryRef> BlockStore::match(std::span<const TokenId> tokens, std::string_view salt,
                                        std::size_t max_blocks) const {
  std::vector<EntryRef> entries;
  EntryRef last = index_.find_root(salt);
  if (!last) return entries;
  const std::size_t num_blocks = std::min(max_blocks, tokens.size() / block_size_);
  while (entries.size() < num_blocks) {
    const std::span<const TokenId> block = tokens.subspan(entries.size() * block_size_, block_size_);
    last = index_.find(last, make_key_(index_.key(last), block), block);
    if (!last) break;
    entries.push_back(last);
  }
  return entries;
}

std::vector<BlockId> BlockStore::acquire(std::span<const EntryRef> entries) {
  // All are held from the beginning, so that making room for one cannot evict another.
  for (const EntryRef& entry : entries) pool(place(entry).tier).add_ref(place(entry).index);
  std::vector<BlockId> blocks;
  blocks.reserve(entries.size());
  for (const EntryRef& entry : entries) {
    const KvPlace from = place(entry);
    if (from.tier == KvTier::kHot) {
      if (hot().num_refs(from.index) == 1) ++totals_.allocated_blocks;
      blocks.push_back(from.index);
      continue;
    }
    if (num_available() == 0) break;
    const BlockId block = allocate();
    move(entry, {.tier = KvTier::kHot, .index = block});
    pool(from.tier).release(from.index);
    blocks.push_back(block);
  }
  for (std::size_t i = entries.size(); i > blocks.size(); --i) {
    pool(place(entries[i - 1]).tier).release(place(entries[i - 1]).index);
  }
  return blocks;
}

EntryRef BlockStore::publish(const EntryRef& parent, std::string_view salt, std::span<const TokenId> tokens,
                             BlockId block) {
  check(hot().num_refs(block) > 0, "a block that nobody holds is published");
  const KvPlace here{.tier = KvTier::kHot, .index = block};
  const EntryRef above = parent ? parent : index_.find_root(salt);
  const PrefixKey key = make_key_(above ? index_.key(above) : root_key(salt), tokens);
  const EntryRef same = above ? index_.find(above, key, tokens) : EntryRef{};
  if (same) {
    const KvPlace there = place(same);
    if (!pool(there.tier).is_cached(there.index)) return same;
    check(!hot().is_findable(block), "a block is published under two prefixes");
    index_.set_place(same, here);
    pool(there.tier).set_findable(there.index, false);
    hot().set_findable(block, true);
    return same;
  }
  check(!hot().is_findable(block), "a block is published under two prefixes");
  if (index_.has_key(key)) return {};
  hot().set_findable(block, true);
  return index_.add(above ? above : index_.add_root(salt), key, tokens, here);
}

std::vector<KvManager::Slot> BlockStore::insert(std::span<const TokenId> tokens, std::string_view salt) {
  const std::size_t num_blocks = tokens.size() / block_size_;
  std::vector<KvManager::Slot> slots;
  EntryRef last;
  for (const EntryRef& entry : match(tokens, salt, num_blocks)) {
    slots.push_back({.place = place(entry), .is_new = false});
    pool(place(entry).tier).add_ref(place(entry).index);
    last = entry;
  }
  while (slots.size() < num_blocks) {
    const std::span<const TokenId> block = tokens.subspan(slots.size() * block_size_, block_size_);
    const auto tier = std::ranges::find_if(kTiers, [&](KvTier t) { return make_room(t); });
    if (tier == kTiers.end()) break;
    // Looked up after making room, which may have dropped the salt's root.
    if (!last) last = index_.find_root(salt);
    const PrefixKey key = make_key_(last ? index_.key(last) : root_key(salt), block);
    if (index_.has_key(key)) break;
    if (!last) last = index_.add_root(salt);
    const KvPlace place{.tier = *tier, .index = pool(*tier).allocate()};
    last = index_.add(last, key, block, place);
    pool(*tier).set_findable(place.index, true);
    slots.push_back({.place = place, .is_new = true});
  }
  for (std::size_t i = slots.size(); i > 0; --i) pool(slots[i - 1].place.tier).release(slots[i - 1].place.index);
  return slots;
}

void BlockStore::clear_cache() {
  for (const KvTier tier : kTiers) {
    for (std::int32_t i = 0; i < pool(tier).size(); ++i) {
      if (pool(tier).is_cached(i)) drop(index_.at_place({.tier = tier, .index = i}));
    }
  }
}

std::vector<KvOp> BlockStore::take_ops() {
  taken_ops_ = std::move(ops_);
  ops_.clear();
  return taken_ops_;
}

std::vector<BlockId> BlockStore::move_failed(const KvOp& op) {
  ++totals_.failed_moves;
  std::set<KvPlace> spoiled{op.to};
  bool reached = false;
  const auto follow = [&](const KvOp& next) {
    if (!copies_bytes(next)) return;
    if (next.kind == op.kind && next.from == op.from && next.to == op.to) {
      reached = true;
      spoiled.insert(next.to);
    } else if (reached && spoiled.contains(next.from)) {
      spoiled.insert(next.to);
    } else if (reached) {
      spoiled.erase(next.to);
    }
  };
  std::ranges::for_each(taken_ops_, follow);
  reached = true;
  std::ranges::for_each(ops_, follow);

  std::vector<BlockId> blocks;
  for (const KvPlace& place : spoiled) {
    if (const EntryRef entry = index_.at_place(place)) drop(entry);
    if (place.tier == KvTier::kHot) blocks.push_back(place.index);
  }
  return blocks;
}

KvStats BlockStore::stats() const {
  KvStats stats = totals_;
  stats.hot_used = hot().num_held();
  stats.hot_cached = hot().num_cached();
  stats.warm_used = pool(KvTier::kWarm).size() - pool(KvTier::kWarm).num_free();
  stats.cold_used = pool(KvTier::kCold).size() - pool(KvTier::kCold).num_free();
  return stats;
}

void BlockStore::check_invariants() const {
  index_.check_invariants();
  for (const KvTier tier : kTiers) {
    pool(tier).check_invariants();
    check(tier == KvTier::kHot || pool(tier).num_held() == 0, "a block of a lower tier is held");
    for (std::int32_t i = 0; i < pool(tier).size(); ++i) {
      const bool is_stored = static_cast<bool>(index_.at_place({.tier = tier, .index = i}));
      check(is_stored == pool(tier).is_findable(i), "a block is findable without an entry, or the other way round");
    }
  }
}

}  // namespace genai::kv
