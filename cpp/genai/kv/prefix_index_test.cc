#include "genai/kv/prefix_index.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <vector>

namespace genai::kv {
namespace {

using Tokens = std::vector<TokenId>;

constexpr PrefixKey kKey1{.low = 1, .high = 0};
constexpr PrefixKey kKey2{.low = 2, .high = 0};
constexpr PrefixKey kKey3{.low = 3, .high = 0};

KvPlace hot(std::int32_t index) {
  return {.tier = KvTier::kHot, .index = index};
}
KvPlace warm(std::int32_t index) {
  return {.tier = KvTier::kWarm, .index = index};
}

PrefixIndex small_index() {
  return {2, {4, 4, 0}};
}

TEST_CASE("StoredBlock_Found_ByParentKeyAndTokens") {
  PrefixIndex index = small_index();
  const EntryRef root = index.add_root("salt");

  const EntryRef first = index.add(root, kKey1, Tokens{5, 6}, hot(3));

  CHECK(index.find(root, kKey1, Tokens{5, 6}) == first);
  CHECK(index.place(first) == hot(3));
  CHECK(index.at_place(hot(3)) == first);
  CHECK(index.parent(first) == root);
  CHECK_FALSE(index.at_place(hot(2)));
  index.check_invariants();
}

TEST_CASE("EqualKey_OtherTokensOrOtherParent_NotFound") {
  PrefixIndex index = small_index();
  const EntryRef root = index.add_root("");
  const EntryRef other_root = index.add_root("other");
  const EntryRef first = index.add(root, kKey1, Tokens{5, 6}, hot(0));

  CHECK_FALSE(index.find(root, kKey1, Tokens{5, 7}));
  CHECK_FALSE(index.find(other_root, kKey1, Tokens{5, 6}));
  CHECK_FALSE(index.find(first, kKey1, Tokens{5, 6}));
  CHECK(index.has_key(kKey1));
  CHECK_THROWS_WITH_AS(index.add(root, kKey1, Tokens{5, 7}, hot(1)), doctest::Contains("stored twice"), Error);
}

TEST_CASE("ParentReplacedByOneWithItsKey_OldChildren_AreGone") {
  PrefixIndex index = small_index();
  const EntryRef root = index.add_root("");
  index.add(root, kKey3, Tokens{0, 0}, hot(3));
  const EntryRef old_parent = index.add(root, kKey1, Tokens{1, 1}, hot(0));
  index.add(old_parent, kKey2, Tokens{2, 2}, hot(1));

  index.drop(old_parent);
  const EntryRef new_parent = index.add(root, kKey1, Tokens{9, 9}, hot(0));

  CHECK_FALSE(index.find(new_parent, kKey2, Tokens{2, 2}));
  CHECK_FALSE(index.is_alive(old_parent));
}

TEST_CASE("DroppedEntry_TakesWhatIsBelowWithIt_EndsFirst") {
  PrefixIndex index = small_index();
  const EntryRef root = index.add_root("");
  const EntryRef first = index.add(root, kKey1, Tokens{1, 1}, hot(0));
  const EntryRef second = index.add(first, kKey2, Tokens{2, 2}, warm(1));
  const EntryRef third = index.add(second, kKey3, Tokens{3, 3}, hot(2));

  CHECK(index.drop(first) == std::vector<KvPlace>{hot(2), warm(1), hot(0)});

  CHECK(index.size() == 0);
  CHECK_FALSE(index.is_alive(third));
  CHECK_FALSE(index.is_alive(root));
  CHECK_FALSE(index.find_root(""));
  index.check_invariants();
}

TEST_CASE("DroppedEntry_Siblings_Stay") {
  PrefixIndex index = small_index();
  const EntryRef root = index.add_root("");
  const EntryRef a = index.add(root, kKey1, Tokens{1, 1}, hot(0));
  const EntryRef b = index.add(root, kKey2, Tokens{2, 2}, hot(1));
  const EntryRef c = index.add(root, kKey3, Tokens{3, 3}, hot(2));

  index.drop(b);
  index.check_invariants();

  CHECK(index.find(root, kKey1, Tokens{1, 1}) == a);
  CHECK(index.find(root, kKey3, Tokens{3, 3}) == c);
}

TEST_CASE("ReusedEntry_OldReference_IsDead") {
  PrefixIndex index = small_index();
  const EntryRef root = index.add_root("");
  const EntryRef kept = index.add(root, kKey3, Tokens{3, 3}, hot(2));
  const EntryRef old_entry = index.add(root, kKey1, Tokens{1, 1}, hot(0));
  index.drop(old_entry);

  const EntryRef new_entry = index.add(root, kKey1, Tokens{1, 1}, hot(0));

  CHECK(new_entry.index == old_entry.index);
  CHECK_FALSE(index.is_alive(old_entry));
  CHECK(index.is_alive(new_entry));
  CHECK(index.is_alive(kept));
  CHECK_THROWS_AS(index.place(old_entry), Error);
}

TEST_CASE("MovedEntry_OldPlace_IsEmpty") {
  PrefixIndex index = small_index();
  const EntryRef entry = index.add(index.add_root(""), kKey1, Tokens{1, 1}, hot(0));

  index.set_place(entry, warm(2));

  CHECK_FALSE(index.at_place(hot(0)));
  CHECK(index.at_place(warm(2)) == entry);
  index.check_invariants();
}

TEST_CASE("Roots_AreToldApartBySalt") {
  PrefixIndex index = small_index();
  const EntryRef a = index.add_root("a");
  const EntryRef b = index.add_root(std::string("a\0", 2));

  CHECK(a != b);
  CHECK(index.key(a) != index.key(b));
  CHECK(index.add_root("a") == a);
}

}  // namespace
}  // namespace genai::kv
