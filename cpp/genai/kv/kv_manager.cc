#include "genai/kv/kv_manager.h"

#include "genai/base/error.h"
#include "genai/kv/block_store.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

namespace genai::kv {
namespace {

struct Sequence {
  std::vector<BlockId> table;
  std::int64_t length = 0;
  std::string salt;
  /// Blocks [0, num_published) had entries when they were last looked at; `last_published` is the entry of the last of
  /// them. It dies when a block before it is dropped that another sequence had published.
  std::int64_t num_published = 0;
  EntryRef last_published;
  bool has_storage = false;  ///< something was ever reserved, so a decoder with contiguous KV may know the sequence
};

KvConfig checked(KvConfig config) {
  const auto demand = [](bool holds, const char* name, std::int64_t value, const char* limit) {
    if (!holds) {
      throw Error(ErrorCode::kInvalidArgument, std::string(name) + " is " + std::to_string(value) + "; it must be " +
                                                   limit + ". Change the memory limits or the block size.");
    }
  };
  constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31U) - 2;
  const auto is_size = [](std::int64_t blocks) { return blocks >= 0 && blocks <= kMaxBlocks; };
  demand(config.block_size >= 1, "block_size", config.block_size, ">= 1");
  demand(config.num_hot_blocks >= 1 && is_size(config.num_hot_blocks), "num_hot_blocks", config.num_hot_blocks,
         ">= 1 and < 2^31 - 1");
  demand(is_size(config.num_warm_blocks), "num_warm_blocks", config.num_warm_blocks, ">= 0 and < 2^31 - 1");
  demand(is_size(config.num_cold_blocks), "num_cold_blocks", config.num_cold_blocks, ">= 0 and < 2^31 - 1");
  if (!config.shares_blocks) config.prefix_cache = false;
  // Only what can be found again ever leaves the hot tier.
  if (!config.prefix_cache) config.num_warm_blocks = config.num_cold_blocks = 0;
  return config;
}

}  // namespace

struct KvManager::Impl {
  explicit Impl(const KvConfig& wanted) : config(checked(wanted)), block_size(config.block_size), store(config) {}

  std::int64_t blocks_of(std::int64_t num_tokens) const { return (num_tokens + block_size - 1) / block_size; }

  Sequence& at(SequenceId id) {
    const auto it = sequences.find(id);
    check(it != sequences.end(), "a sequence is unknown to the KV manager");
    return it->second;
  }

  Sequence& add(SequenceId id) {
    const auto [it, is_new] = sequences.try_emplace(id);
    check(is_new, "a sequence was started twice in the KV manager");
    return it->second;
  }

  /// Gives back blocks behind the first `num_blocks`, the last one first, so that ends are evicted before beginnings.
  void shrink(Sequence& sequence, std::int64_t num_blocks) {
    while (std::ssize(sequence.table) > num_blocks) {
      store.release(sequence.table.back());
      sequence.table.pop_back();
    }
  }

  void replace(Sequence& sequence, std::int64_t index);
  void grow(Sequence& sequence, std::int64_t num_blocks);
  void publish(Sequence& sequence, std::span<const TokenId> tokens);
  void forget_published(Sequence& sequence, std::int64_t num_blocks) const;

  KvConfig config;
  std::int64_t block_size;
  BlockStore store;
  std::unordered_map<SequenceId, Sequence> sequences;
  std::int64_t queried_tokens = 0;
  std::int64_t hit_tokens = 0;
};

/// Copy-on-write of one block of the table.
void KvManager::Impl::replace(Sequence& sequence, std::int64_t index) {
  BlockId& block = sequence.table[static_cast<std::size_t>(index)];
  const BlockId writable = store.allocate();
  if (index * block_size < sequence.length) store.copy(block, writable);
  store.release(block);
  block = writable;
}

void KvManager::Impl::grow(Sequence& sequence, std::int64_t num_blocks) {
  while (std::ssize(sequence.table) < num_blocks) sequence.table.push_back(store.allocate());
}

/// Makes the sequence's full blocks findable that are not yet.
void KvManager::Impl::publish(Sequence& sequence, std::span<const TokenId> tokens) {
  const std::int64_t num_full = sequence.length / block_size;
  if (sequence.num_published >= num_full) return;
  if (sequence.num_published > 0 && !store.is_alive(sequence.last_published)) {
    const std::vector<EntryRef> entries = store.match(tokens, sequence.salt, static_cast<std::size_t>(num_full));
    sequence.num_published = std::ssize(entries);
    sequence.last_published = entries.empty() ? EntryRef{} : entries.back();
  }
  for (std::int64_t& i = sequence.num_published; i < num_full; ++i) {
    const std::span<const TokenId> block =
        tokens.subspan(static_cast<std::size_t>(i * block_size), static_cast<std::size_t>(block_size));
    const EntryRef entry =
        store.publish(sequence.last_published, sequence.salt, block, sequence.table[static_cast<std::size_t>(i)]);
    if (!entry) return;
    sequence.last_published = entry;
  }
}

/// Only the first `num_blocks` blocks count as published.
void KvManager::Impl::forget_published(Sequence& sequence, std::int64_t num_blocks) const {
  for (; sequence.num_published > num_blocks; --sequence.num_published) {
    if (store.is_alive(sequence.last_published)) sequence.last_published = store.parent(sequence.last_published);
  }
  if (sequence.num_published == 0) sequence.last_published = {};
}

KvManager::KvManager(KvConfig config) : impl_(std::make_unique<Impl>(config)) {}
KvManager::~KvManager() = default;

const KvConfig& KvManager::config() const {
  return impl_->config;
}

std::int64_t KvManager::capacity_tokens() const {
  return impl_->config.num_hot_blocks * impl_->block_size;
}

bool KvManager::could_hold(std::int64_t num_tokens) const {
  return impl_->blocks_of(num_tokens) <= impl_->store.num_available();
}

std::int64_t KvManager::start(SequenceId id, std::span<const TokenId> tokens, std::string_view salt) {
  Sequence& sequence = impl_->add(id);
  sequence.salt = salt;
  impl_->queried_tokens += std::ssize(tokens);
  if (!impl_->config.prefix_cache || tokens.empty()) return 0;
  const std::size_t max_blocks = (tokens.size() - 1) / static_cast<std::size_t>(impl_->block_size);
  const std::vector<EntryRef> entries = impl_->store.match(tokens, salt, max_blocks);
  sequence.table = impl_->store.acquire(entries);
  sequence.num_published = std::ssize(sequence.table);
  if (!sequence.table.empty()) sequence.last_published = entries[sequence.table.size() - 1];
  sequence.length = sequence.num_published * impl_->block_size;
  impl_->hit_tokens += sequence.length;
  return sequence.length;
}

bool KvManager::reserve(SequenceId id, std::int64_t num_tokens) {
  Sequence& sequence = impl_->at(id);
  if (num_tokens <= sequence.length) return true;
  BlockStore& store = impl_->store;
  const std::int64_t num_blocks = impl_->blocks_of(num_tokens);
  // Only the block of the first position can be one that is not writable: those behind it were never written.
  const std::int64_t first = sequence.length / impl_->block_size;
  const bool needs_copy =
      first < std::ssize(sequence.table) && !store.is_writable(sequence.table[static_cast<std::size_t>(first)]);
  const std::int64_t num_new = std::max<std::int64_t>(0, num_blocks - std::ssize(sequence.table));
  if (num_new > store.num_available()) {
    store.count_failed_reserve();
    return false;
  }
  if (needs_copy) {
    const BlockId block = sequence.table[static_cast<std::size_t>(first)];
    if (num_new < store.num_available()) {
      impl_->replace(sequence, first);
    } else if (!store.is_shared(block)) {
      store.unpublish(block);
    } else {
      store.count_failed_reserve();
      return false;
    }
  }
  impl_->grow(sequence, num_blocks);
  sequence.has_storage = true;
  return true;
}

void KvManager::written(SequenceId id, std::span<const TokenId> tokens) {
  Sequence& sequence = impl_->at(id);
  const std::int64_t length = std::ssize(tokens);
  check(length >= sequence.length, "KV was written before the end of a sequence");
  check(impl_->blocks_of(length) <= std::ssize(sequence.table), "KV was written that was not reserved");
  const std::size_t first = static_cast<std::size_t>(sequence.length / impl_->block_size);
  check(length == sequence.length || !impl_->store.is_findable(sequence.table[first]),
        "KV was written to a block that others can find");
  sequence.length = length;
  if (impl_->config.prefix_cache) impl_->publish(sequence, tokens);
}

bool KvManager::fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) {
  check(!contains(child), "a sequence was started twice in the KV manager");
  check(num_tokens >= 0 && num_tokens <= length(parent), "a fork goes beyond what its parent has written");
  BlockStore& store = impl_->store;
  const std::int64_t num_blocks = impl_->blocks_of(num_tokens);
  const bool shares = impl_->config.shares_blocks;
  if (!shares && num_blocks > store.num_available()) return false;

  Sequence& to = impl_->add(child);
  const Sequence& from = impl_->at(parent);
  to.length = num_tokens;
  to.salt = from.salt;
  if (shares) {
    to.table.assign(from.table.begin(), from.table.begin() + num_blocks);
    for (const BlockId block : to.table) store.add_ref(block);
    to.num_published = from.num_published;
    to.last_published = from.last_published;
    impl_->forget_published(to, num_tokens / impl_->block_size);
  } else if (num_tokens > 0) {
    impl_->grow(to, num_blocks);
    to.has_storage = true;
    store.add_op({.kind = KvOp::Kind::kCopySequence,
                  .from = {},
                  .to = {},
                  .parent = parent,
                  .child = child,
                  .num_tokens = num_tokens});
  }
  return true;
}

void KvManager::rewind(SequenceId id, std::int64_t num_tokens) {
  Sequence& sequence = impl_->at(id);
  check(num_tokens >= 0 && num_tokens <= sequence.length, "a sequence is rewound beyond what it has written");
  impl_->shrink(sequence, impl_->blocks_of(num_tokens));
  impl_->forget_published(sequence, num_tokens / impl_->block_size);
  sequence.length = num_tokens;
}

void KvManager::release(SequenceId id) {
  const auto it = impl_->sequences.find(id);
  if (it == impl_->sequences.end()) return;
  impl_->shrink(it->second, 0);
  if (!impl_->config.shares_blocks && it->second.has_storage) {
    impl_->store.add_op({.kind = KvOp::Kind::kReleaseSequence, .from = {}, .to = {}, .parent = id, .child = {}});
  }
  impl_->sequences.erase(it);
}

bool KvManager::contains(SequenceId id) const {
  return impl_->sequences.contains(id);
}

std::int64_t KvManager::length(SequenceId id) const {
  return impl_->at(id).length;
}

std::span<const BlockId> KvManager::block_table(SequenceId id) const {
  return impl_->at(id).table;
}

std::vector<KvOp> KvManager::take_ops() {
  return impl_->store.take_ops();
}

std::vector<SequenceId> KvManager::move_failed(const KvOp& op) {
  const std::vector<BlockId> lost = impl_->store.move_failed(op);
  std::vector<SequenceId> holders;
  if (lost.empty()) return holders;
  for (const auto& [id, sequence] : impl_->sequences) {
    const bool holds =
        std::ranges::any_of(sequence.table, [&](BlockId block) { return std::ranges::binary_search(lost, block); });
    if (holds) holders.push_back(id);
  }
  std::ranges::sort(holders);
  return holders;
}

void KvManager::set_costs(SwapCosts costs) {
  impl_->store.set_costs(costs);
}

std::vector<KvPlace> KvManager::find(std::span<const TokenId> tokens, std::string_view salt) const {
  std::vector<KvPlace> places;
  for (const EntryRef& entry : impl_->store.match(tokens, salt, tokens.size())) {
    places.push_back(impl_->store.place(entry));
  }
  return places;
}

std::vector<KvManager::Slot> KvManager::insert(std::span<const TokenId> tokens, std::string_view salt) {
  if (!impl_->config.prefix_cache) return {};
  return impl_->store.insert(tokens, salt);
}

void KvManager::clear_cache() {
  impl_->store.clear_cache();
}

KvStats KvManager::stats() const {
  KvStats stats = impl_->store.stats();
  stats.prefix_queried_tokens = impl_->queried_tokens;
  stats.prefix_hit_tokens = impl_->hit_tokens;
  return stats;
}

void KvManager::check_invariants() const {
  impl_->store.check_invariants();
  std::vector<std::int32_t> num_refs(static_cast<std::size_t>(impl_->config.num_hot_blocks));
  for (const auto& [id, sequence] : impl_->sequences) {
    check(impl_->blocks_of(sequence.length) <= std::ssize(sequence.table), "a sequence is longer than its table");
    check(sequence.num_published <= sequence.length / impl_->block_size, "a block was published before it was full");
    for (const BlockId block : sequence.table) ++num_refs[static_cast<std::size_t>(block)];
  }
  for (std::size_t i = 0; i < num_refs.size(); ++i) {
    check(num_refs[i] == impl_->store.num_refs(static_cast<BlockId>(i)), "a block has a wrong number of holders");
  }
}

}  // namespace genai::kv
