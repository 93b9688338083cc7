#include "genai/kv/prefix_index.h"

#include "genai/base/error.h"
#include "genai/kv/prefix_key.h"

#include <algorithm>

namespace genai::kv {

PrefixIndex::PrefixIndex(std::size_t block_size, const std::array<std::int64_t, 3>& num_places)
    : block_size_(block_size) {
  check(block_size > 0, "a block has no tokens");
  for (std::size_t tier = 0; tier < by_place_.size(); ++tier) {
    by_place_[tier].resize(static_cast<std::size_t>(num_places[tier]), kNone);
  }
}

EntryRef PrefixIndex::ref(std::int32_t index) const {
  if (index == kNone) return {};
  return {.index = index, .serial = at(index).serial};
}

const PrefixIndex::Entry& PrefixIndex::at(const EntryRef& entry) const {
  check(is_alive(entry), "an entry of the prefix index is used after its end");
  return at(entry.index);
}

std::span<TokenId> PrefixIndex::tokens_of(std::int32_t index) {
  return std::span(tokens_).subspan(static_cast<std::size_t>(index) * block_size_, block_size_);
}

std::span<const TokenId> PrefixIndex::tokens_of(std::int32_t index) const {
  return std::span(tokens_).subspan(static_cast<std::size_t>(index) * block_size_, block_size_);
}

std::int32_t& PrefixIndex::slot(const KvPlace& place) {
  return by_place_[static_cast<std::size_t>(place.tier)][static_cast<std::size_t>(place.index)];
}

const std::int32_t& PrefixIndex::slot(const KvPlace& place) const {
  return by_place_[static_cast<std::size_t>(place.tier)][static_cast<std::size_t>(place.index)];
}

EntryRef PrefixIndex::find_root(std::string_view salt) const {
  const auto it = roots_.find(salt);
  return it == roots_.end() ? EntryRef{} : ref(it->second);
}

EntryRef PrefixIndex::add_root(std::string_view salt) {
  if (const EntryRef root = find_root(salt)) return root;
  const std::int32_t index = new_entry();
  at(index).key = root_key(salt);
  at(index).is_root = true;
  roots_.emplace(salt, index);
  return ref(index);
}

bool PrefixIndex::is_alive(const EntryRef& entry) const {
  return entry && static_cast<std::size_t>(entry.index) < entries_.size() && at(entry.index).serial == entry.serial;
}

EntryRef PrefixIndex::find(const EntryRef& parent, const PrefixKey& key, std::span<const TokenId> tokens) const {
  const auto it = by_key_.find(key);
  if (it == by_key_.end() || at(it->second).parent != parent.index) return {};
  return std::ranges::equal(tokens_of(it->second), tokens) ? ref(it->second) : EntryRef{};
}

EntryRef PrefixIndex::add(const EntryRef& parent, const PrefixKey& key, std::span<const TokenId> tokens,
                          const KvPlace& place) {
  check(is_alive(parent) && tokens.size() == block_size_ && slot(place) == kNone, "a block cannot be stored");
  const std::int32_t index = new_entry();
  check(by_key_.emplace(key, index).second, "a key is stored twice");
  at(index).key = key;
  at(index).place = place;
  slot(place) = index;
  std::ranges::copy(tokens, tokens_of(index).begin());
  link(index, parent.index);
  return ref(index);
}

void PrefixIndex::set_place(const EntryRef& entry, const KvPlace& place) {
  check(is_alive(entry) && slot(place) == kNone, "a block cannot be stored");
  slot(at(entry.index).place) = kNone;
  slot(place) = entry.index;
  at(entry.index).place = place;
}

std::vector<KvPlace> PrefixIndex::drop(const EntryRef& entry) {
  check(is_alive(entry) && !at(entry.index).is_root, "an entry of the prefix index is dropped twice");
  std::vector<std::int32_t> doomed{entry.index};
  for (std::size_t i = 0; i < doomed.size(); ++i) {
    for (std::int32_t c = at(doomed[i]).first_child; c != kNone; c = at(c).next_sibling) doomed.push_back(c);
  }
  const std::int32_t above = at(entry.index).parent;
  std::vector<KvPlace> places;
  places.reserve(doomed.size());
  std::ranges::reverse(doomed);
  for (const std::int32_t index : doomed) {
    places.push_back(at(index).place);
    slot(at(index).place) = kNone;
    by_key_.erase(at(index).key);
    unlink(index);
    erase(index);
  }
  if (at(above).is_root && at(above).first_child == kNone) {
    std::erase_if(roots_, [&](const auto& root) { return root.second == above; });
    erase(above);
  }
  return places;
}

EntryRef PrefixIndex::parent(const EntryRef& entry) const {
  return ref(at(entry).parent);
}

EntryRef PrefixIndex::at_place(const KvPlace& place) const {
  return ref(slot(place));
}

std::int32_t PrefixIndex::new_entry() {
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::int32_t>(entries_.size()));
    entries_.emplace_back();
    tokens_.resize(entries_.size() * block_size_);
  }
  const std::int32_t index = unused_.back();
  unused_.pop_back();
  at(index) = {.key = {}, .place = {}, .serial = ++last_serial_};
  return index;
}

void PrefixIndex::erase(std::int32_t index) {
  at(index).serial = 0;
  unused_.push_back(index);
}

void PrefixIndex::link(std::int32_t child, std::int32_t parent) {
  const std::int32_t next = at(parent).first_child;
  at(child).parent = parent;
  at(child).next_sibling = next;
  if (next != kNone) at(next).previous_sibling = child;
  at(parent).first_child = child;
}

void PrefixIndex::unlink(std::int32_t child) {
  const Entry& entry = at(child);
  if (entry.previous_sibling == kNone) {
    at(entry.parent).first_child = entry.next_sibling;
  } else {
    at(entry.previous_sibling).next_sibling = entry.next_sibling;
  }
  if (entry.next_sibling != kNone) at(entry.next_sibling).previous_sibling = entry.previous_sibling;
}

void PrefixIndex::check_invariants() const {
  std::size_t num_alive = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::int32_t index = static_cast<std::int32_t>(i);
    const Entry& entry = at(index);
    if (entry.serial == 0) continue;
    ++num_alive;
    for (std::int32_t c = entry.first_child; c != kNone; c = at(c).next_sibling) {
      check(at(c).serial != 0 && at(c).parent == index, "the tree of the prefix index is broken");
    }
    if (entry.is_root) continue;
    check(at(entry.parent).serial != 0, "an entry of the prefix index outlives the one above it");
    check(slot(entry.place) == index, "an entry of the prefix index is not at its place");
    const auto it = by_key_.find(entry.key);
    check(it != by_key_.end() && it->second == index, "an entry of the prefix index has lost its key");
    const std::int32_t before = entry.previous_sibling;
    check(before == kNone ? at(entry.parent).first_child == index : at(before).next_sibling == index,
          "the tree of the prefix index is broken");
  }
  check(num_alive == by_key_.size() + roots_.size() && num_alive + unused_.size() == entries_.size(),
        "the counts of the prefix index are wrong");
  std::size_t num_stored = 0;
  for (const std::vector<std::int32_t>& tier : by_place_) {
    num_stored += tier.size() - static_cast<std::size_t>(std::ranges::count(tier, kNone));
  }
  check(num_stored == by_key_.size(), "a place of the prefix index has no entry");
}

}  // namespace genai::kv
