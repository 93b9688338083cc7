#pragma once

#include "genai/base/ids.h"
#include "genai/core/kv.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace genai::kv {

/// Names an entry of a PrefixIndex for as long as the entry lives; a later entry never gets an equal one.
struct EntryRef {
  std::int32_t index = -1;  ///< -1: no entry
  std::uint64_t serial = 0;
  explicit operator bool() const { return index >= 0; }
  friend bool operator==(const EntryRef&, const EntryRef&) = default;
};

/// Where the KV of full blocks lies, found by the prefix that the block ends. One thread.
///
/// Entries form trees: below the root of each salt stand the entries of first blocks, below those second blocks, and so
/// on. An entry never outlives the one above it, so everything in the index can be reached. A look-up goes by key, and
/// then compares the entry above and the block's tokens, so a match is exact whatever the keys are.
class PrefixIndex {
 public:
  /// block_size: tokens of a block, >= 1. num_places: sizes of the tiers in the order of KvTier.
  PrefixIndex(std::size_t block_size, const std::array<std::int64_t, 3>& num_places);

  /// The root of a salt; none if nothing is stored below it.
  EntryRef find_root(std::string_view salt) const;
  /// The same, made if there is none. It goes with the last entry below it; a root without entries stays until
  /// something was stored there.
  EntryRef add_root(std::string_view salt);

  bool is_alive(const EntryRef& entry) const;
  /// What find() and add() want to know. `tokens`: block_size ids.
  EntryRef find(const EntryRef& parent, const PrefixKey& key, std::span<const TokenId> tokens) const;
  bool has_key(const PrefixKey& key) const { return by_key_.contains(key); }
  /// Requires: the parent is alive, the key is not there, nothing is stored at the place.
  EntryRef add(const EntryRef& parent, const PrefixKey& key, std::span<const TokenId> tokens, const KvPlace& place);
  /// Requires: nothing is stored at the place.
  void set_place(const EntryRef& entry, const KvPlace& place);
  /// Takes out the entry and all below it; returns their places, ends before beginnings.
  std::vector<KvPlace> drop(const EntryRef& entry);

  const PrefixKey& key(const EntryRef& entry) const { return at(entry).key; }
  const KvPlace& place(const EntryRef& entry) const { return at(entry).place; }
  /// The entry above; a root for an entry of a first block.
  EntryRef parent(const EntryRef& entry) const;
  /// The entry that is stored at a place, if any.
  EntryRef at_place(const KvPlace& place) const;
  std::size_t size() const { return by_key_.size(); }  ///< entries without roots

  /// Throws kInternal when links, keys and places contradict each other. Cost: O(entries + places).
  void check_invariants() const;

 private:
  static constexpr std::int32_t kNone = -1;

  struct Entry {
    PrefixKey key;
    KvPlace place;             ///< without meaning for roots
    std::uint64_t serial = 0;  ///< 0: unused
    std::int32_t parent = kNone;
    std::int32_t first_child = kNone;
    std::int32_t previous_sibling = kNone;
    std::int32_t next_sibling = kNone;
    bool is_root = false;
  };

  EntryRef ref(std::int32_t index) const;
  Entry& at(std::int32_t index) { return entries_[static_cast<std::size_t>(index)]; }
  const Entry& at(std::int32_t index) const { return entries_[static_cast<std::size_t>(index)]; }
  const Entry& at(const EntryRef& entry) const;
  std::span<TokenId> tokens_of(std::int32_t index);
  std::span<const TokenId> tokens_of(std::int32_t index) const;
  std::int32_t& slot(const KvPlace& place);
  const std::int32_t& slot(const KvPlace& place) const;
  std::int32_t new_entry();
  void link(std::int32_t child, std::int32_t parent);
  void unlink(std::int32_t child);
  void erase(std::int32_t index);

  std::size_t block_size_;
  std::vector<Entry> entries_;
  std::vector<TokenId> tokens_;  ///< [entries, block_size]
  std::vector<std::int32_t> unused_;
  std::uint64_t last_serial_ = 0;
  std::unordered_map<PrefixKey, std::int32_t> by_key_;
  std::map<std::string, std::int32_t, std::less<>> roots_;
  std::array<std::vector<std::int32_t>, 3> by_place_;
};

}  // namespace genai::kv
