#include "genai/runner/slot_storage.h"

#include "genai/base/error.h"
#include "genai/runner/test_models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace genai::runner {
namespace {

KvPair pair_of(std::vector<std::int64_t> dims, int sequence_axis) {
  return {
      .past = "past", .present = "present", .dims = std::move(dims), .batch_axis = 0, .sequence_axis = sequence_axis};
}

/// The elements of slot `slot` of pair `pair`.
std::span<float> elements(const SlotStorage& storage, std::size_t pair, int slot, const ort::Library& library) {
  const ort::Value view = storage.view(pair, slot, 1, library);
  return {view.data_as<float>(), static_cast<std::size_t>(view.dims().num_elements())};
}

}  // namespace

TEST_CASE("SlotStorage_Growth_KeepsWhatIsComputed") {
  const std::optional<std::string> path = test_ort_library();
  if (!path) return;
  const ort::Library& library = ort::Library::load(*path);
  const std::vector<KvLayout> layouts = {KvLayout(pair_of({-1, 2, -1, 1}, 2), "/m")};
  SlotStorage storage(layouts);
  SlotTable table;
  table.set_length(table.add(SequenceId{1}), 2);
  storage.reserve(1, 4, table);
  const std::vector<float> before = {1, 2, 3, 4, 5, 6, 7, 8};
  std::copy(before.begin(), before.end(), elements(storage, 0, 0, library).begin());

  storage.reserve(2, 6, table);

  const std::span<float> after = elements(storage, 0, 0, library);
  CHECK(std::vector<float>(after.begin(), after.end()) == std::vector<float>{1, 2, 0, 0, 0, 0, 5, 6, 0, 0, 0, 0});
  CHECK(storage.bytes() == 2 * 2 * 6 * 4);
  CHECK(storage.generation() == 2);
  storage.reserve(1, 3, table);
  CHECK(storage.generation() == 2);
}

TEST_CASE("SlotStorage_CopyAndDiscard_TouchOneSlot") {
  const std::optional<std::string> path = test_ort_library();
  if (!path) return;
  const ort::Library& library = ort::Library::load(*path);
  const std::vector<KvLayout> layouts = {KvLayout(pair_of({-1, 4, 1}, 1), "/m"),  // fixed capacity
                                         KvLayout(pair_of({-1, 1, -1, 1}, 2), "/m")};
  SlotStorage storage(layouts);
  storage.reserve(3, 2, SlotTable());
  for (std::size_t pair = 0; pair < 2; ++pair) {
    for (int slot = 0; slot < 3; ++slot) {
      const std::span<float> values = elements(storage, pair, slot, library);
      std::fill(values.begin(), values.end(), static_cast<float>(slot + 1));
    }
  }

  storage.copy(2, 0, 1);
  storage.discard(2);

  CHECK(storage.view(0, 0, 3, library).dims() == Dims{3, 4, 1});
  CHECK(storage.view(1, 1, 2, library).dims() == Dims{2, 1, 2, 1});
  const float* const fixed = storage.view(0, 0, 3, library).data_as<float>();
  CHECK(std::vector<float>(fixed, fixed + 12) == std::vector<float>{3, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0});
  const float* const grown = storage.view(1, 0, 3, library).data_as<float>();
  CHECK(std::vector<float>(grown, grown + 6) == std::vector<float>{3, 1, 2, 2, 0, 0});
  storage.clear();
  CHECK(storage.bytes() == 0);
}

TEST_CASE("SlotStorage_PackedLayout_IsUnsupported") {
  KvPair packed{
      .past = "past_0", .present = "present_0", .dims = {2, -1, 4, -1, 8}, .batch_axis = 1, .sequence_axis = 3};
  const std::vector<KvLayout> layouts = {KvLayout(packed, "/m")};

  CHECK_THROWS_AS(SlotStorage{layouts}, Error);
}

}  // namespace genai::runner
