#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace genai::kv {

/// Reference counts of the places of one tier, and the order in which places that nobody holds are used again. Owns no
/// KV bytes. One thread. All methods are O(1) except check_invariants().
///
/// A place is free (not held, not findable), cached (not held, findable) or held. Places that nobody holds stand in one
/// line, and the front goes first:
///
///     front | free, last freed first | cached, least recently used first | back
class BlockPool {
 public:
  /// num_places: >= 0 and < 2^31 - 1. All places are free, the lowest at the front.
  explicit BlockPool(std::int64_t num_places);

  std::int64_t size() const { return static_cast<std::int64_t>(nodes_.size()) - 1; }
  std::int64_t num_free() const { return size() - num_held_ - num_cached_; }
  std::int64_t num_cached() const { return num_cached_; }
  std::int64_t num_held() const { return num_held_; }
  /// Places that nobody holds.
  std::int64_t num_available() const { return size() - num_held_; }

  /// The place that goes next. Requires: num_available() > 0.
  std::int32_t front() const;
  /// Takes the front with one holder. Requires: the front is free, not cached.
  std::int32_t allocate();

  /// One holder more.
  void add_ref(std::int32_t place);
  /// One holder less; without holders the place joins the line, at the back if it is findable. Requires: held.
  void release(std::int32_t place);
  /// Says whether the place can be found again. A place that nobody holds changes its position in the line.
  void set_findable(std::int32_t place, bool findable);

  std::int32_t num_refs(std::int32_t place) const { return at(place).num_refs; }
  bool is_findable(std::int32_t place) const { return at(place).is_findable; }
  bool is_cached(std::int32_t place) const { return num_refs(place) == 0 && is_findable(place); }

  /// Throws kInternal when counts and line contradict each other. Cost: O(size).
  void check_invariants() const;

 private:
  /// The last node is the head of the line, which is a ring: head.next is the front, head.previous the back.
  struct Node {
    std::int32_t previous = 0;
    std::int32_t next = 0;
    std::int32_t num_refs = 0;
    bool is_findable = false;
  };

  std::int32_t head() const { return static_cast<std::int32_t>(nodes_.size()) - 1; }
  Node& at(std::int32_t place) { return nodes_[static_cast<std::size_t>(place)]; }
  const Node& at(std::int32_t place) const { return nodes_[static_cast<std::size_t>(place)]; }
  void leave_line(std::int32_t place);
  void join_line(std::int32_t place);

  std::vector<Node> nodes_;
  std::int64_t num_held_ = 0;
  std::int64_t num_cached_ = 0;
};

}  // namespace genai::kv
