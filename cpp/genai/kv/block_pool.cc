#include "genai/kv/block_pool.h"

#include "genai/base/error.h"

#include <limits>

namespace genai::kv {

BlockPool::BlockPool(std::int64_t num_places) {
  check(num_places >= 0 && num_places < std::numeric_limits<std::int32_t>::max(), "a tier has no valid size");
  nodes_.resize(static_cast<std::size_t>(num_places) + 1);
  const std::int32_t num_nodes = static_cast<std::int32_t>(num_places) + 1;
  for (std::int32_t i = 0; i < num_nodes; ++i) {
    at(i).previous = i > 0 ? i - 1 : num_nodes - 1;
    at(i).next = i + 1 < num_nodes ? i + 1 : 0;
  }
}

std::int32_t BlockPool::front() const {
  check(num_available() > 0, "no place of a tier is available");
  return at(head()).next;
}

std::int32_t BlockPool::allocate() {
  const std::int32_t place = front();
  check(!at(place).is_findable, "a cached place was taken before it was evicted");
  add_ref(place);
  return place;
}

void BlockPool::add_ref(std::int32_t place) {
  Node& node = at(place);
  if (node.num_refs++ > 0) return;
  leave_line(place);
  ++num_held_;
  if (node.is_findable) --num_cached_;
}

void BlockPool::release(std::int32_t place) {
  Node& node = at(place);
  check(node.num_refs > 0, "a place that nobody holds was released");
  if (--node.num_refs > 0) return;
  join_line(place);
  --num_held_;
  if (node.is_findable) ++num_cached_;
}

void BlockPool::set_findable(std::int32_t place, bool findable) {
  Node& node = at(place);
  if (node.is_findable == findable) return;
  node.is_findable = findable;
  if (node.num_refs > 0) return;
  leave_line(place);
  join_line(place);
  num_cached_ += findable ? 1 : -1;
}

void BlockPool::leave_line(std::int32_t place) {
  const Node& node = at(place);
  at(node.previous).next = node.next;
  at(node.next).previous = node.previous;
}

void BlockPool::join_line(std::int32_t place) {
  Node& node = at(place);
  const std::int32_t before = node.is_findable ? at(head()).previous : head();
  const std::int32_t behind = at(before).next;
  node.previous = before;
  node.next = behind;
  at(before).next = place;
  at(behind).previous = place;
}

void BlockPool::check_invariants() const {
  std::int64_t held = 0;
  std::int64_t cached = 0;
  for (std::int32_t i = 0; i < head(); ++i) {
    check(at(i).num_refs >= 0, "a place has fewer than no holders");
    if (at(i).num_refs > 0) ++held;
    if (is_cached(i)) ++cached;
  }
  check(held == num_held_ && cached == num_cached_, "the counts of a tier are wrong");
  std::int64_t length = 0;
  bool seen_cached = false;
  for (std::int32_t i = at(head()).next; i != head(); i = at(i).next) {
    check(at(at(i).next).previous == i && ++length <= size(), "the line of a tier is broken");
    check(at(i).num_refs == 0, "a held place stands in the line");
    check(at(i).is_findable || !seen_cached, "a free place stands behind a cached one");
    seen_cached = seen_cached || at(i).is_findable;
  }
  check(length == num_available(), "a place is missing in the line");
}

}  // namespace genai::kv
