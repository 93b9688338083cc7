#include "genai/runner/kv_storage.h"

#include "genai/base/error.h"
#include "genai/runner/test_cold_file.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

namespace genai::runner {
namespace {

constexpr int kBlockSize = 16;

/// A float32 layer, a float16 layer with another head size for values, and an int8 layer with scales.
const std::vector<PagedLayer>& layers() {
  static const std::vector<PagedLayer> layers = {{.key_cache = "k0",
                                                  .value_cache = "v0",
                                                  .key_scale = "",
                                                  .value_scale = "",
                                                  .dtype = DType::kFloat32,
                                                  .kv_heads = 2,
                                                  .head_dim = 4,
                                                  .value_dim = 4},
                                                 {.key_cache = "k1",
                                                  .value_cache = "v1",
                                                  .key_scale = "",
                                                  .value_scale = "",
                                                  .dtype = DType::kFloat16,
                                                  .kv_heads = 1,
                                                  .head_dim = 6,
                                                  .value_dim = 3},
                                                 {.key_cache = "k2",
                                                  .value_cache = "v2",
                                                  .key_scale = "ks2",
                                                  .value_scale = "vs2",
                                                  .dtype = DType::kInt8,
                                                  .kv_heads = 3,
                                                  .head_dim = 5,
                                                  .value_dim = 5}};
  return layers;
}
// 2*4*16*4 * 2  +  6*16*2 + 3*16*2  +  (3*5*16) * 2 + (3*16*4) * 2
constexpr std::int64_t kBlockBytes = 1024 + 288 + 480 + 384;
constexpr std::int64_t kColdStride = 4096;

KvMemory memory_of(std::int64_t hot_blocks, std::int64_t warm_blocks, std::int64_t cold_blocks) {
  return {.hot_bytes = hot_blocks * kBlockBytes,
          .warm_bytes = warm_blocks * kBlockBytes,
          .cold_bytes = cold_blocks * kColdStride,
          .cold_folder = ""};
}

KvPlace hot(std::int32_t index) {
  return {KvTier::kHot, index};
}
KvPlace warm(std::int32_t index) {
  return {KvTier::kWarm, index};
}
KvPlace cold(std::int32_t index) {
  return {KvTier::kCold, index};
}

using Block = std::vector<std::byte>;
Block random_block(std::mt19937& random) {
  Block block(static_cast<std::size_t>(kBlockBytes));
  for (std::byte& byte : block) byte = static_cast<std::byte>(random());
  return block;
}
Block read(const KvStorage& storage, KvPlace place) {
  Block block(static_cast<std::size_t>(storage.block_bytes()));
  storage.read(place, block);
  return block;
}

}  // namespace

TEST_CASE("KvStorage_PresentsOfARun_BecomeTheHotTier") {
  const std::vector<PagedLayer> own = {{.key_cache = "k",
                                        .value_cache = "v",
                                        .key_scale = "",
                                        .value_scale = "",
                                        .order = BlockOrder::kPositionsFirst,
                                        .key_present = "k1",
                                        .value_present = "v1",
                                        .dtype = DType::kFloat32,
                                        .kv_heads = 2,
                                        .head_dim = 3,
                                        .value_dim = 1}};
  // 4 positions of 2 heads, 3 and 1 wide.
  CHECK(KvStorage::block_bytes_of(own, 4) == 4 * 2 * (3 + 1) * 4);
  KvMemory memory;
  memory.hot_bytes = 5 * 128;
  KvStorage storage(own, 4, memory);
  REQUIRE(storage.num_blocks(KvTier::kHot) == 5);
  CHECK(storage.tensors()[0].dims == Dims{5, 4, 2, 3});
  CHECK(storage.tensors()[1].dims == Dims{5, 4, 2, 1});
  CHECK(storage.tensors()[1].present == "v1");

  std::byte* const next = storage.tensors()[0].next.data();
  next[96 * 3] = std::byte{7};  // block 3 of the keys
  storage.take_presents();
  storage.copy(3, 1);

  CHECK(storage.tensors()[0].buffer.data() == next);
  CHECK(read(storage, hot(1))[0] == std::byte{7});
  CHECK(read(storage, hot(2))[0] == std::byte{0});
}

TEST_CASE("KvStorage_Budgets_GiveWholeBlocks") {
  TestColdFile::Disk disk;
  KvMemory memory = memory_of(5, 3, 2);
  memory.hot_bytes += kBlockBytes - 1;
  memory.warm_bytes -= 1;

  const KvStorage storage(layers(), kBlockSize, memory, std::make_unique<TestColdFile>(disk));

  CHECK(storage.block_bytes() == kBlockBytes);
  CHECK(storage.num_blocks(KvTier::kHot) == 5);
  CHECK(storage.num_blocks(KvTier::kWarm) == 2);
  CHECK(storage.num_blocks(KvTier::kCold) == 2);
  CHECK(storage.tensors().size() == 8);
  CHECK(storage.tensors()[0].dims == Dims{5, 2, 4, 16});
  CHECK(storage.tensors()[3].dims == Dims{5, 1, 16, 3});
  CHECK(storage.tensors()[6].name == "ks2");
  CHECK(storage.tensors()[6].dtype == DType::kFloat32);
  CHECK(storage.tensors()[6].dims == Dims{5, 3, 16});
}

TEST_CASE("KvStorage_HugeOrMissingHotBudget_StaysWithinInt32Elements") {
  const std::vector<PagedLayer> wide = {{.key_cache = "k",
                                         .value_cache = "v",
                                         .key_scale = "",
                                         .value_scale = "",
                                         .dtype = DType::kInt8,
                                         .kv_heads = 16,
                                         .head_dim = 128,
                                         .value_dim = 64}};
  const KvStorage huge(wide, kBlockSize, {.hot_bytes = std::int64_t{1} << 45, .cold_folder = ""});
  const KvStorage chosen(layers(), kBlockSize, KvMemory{});
  const KvStorage small(layers(), kBlockSize, {.hot_bytes = 1, .cold_folder = ""});

  CHECK(huge.num_blocks(KvTier::kHot) == 65535);  // (2^31 - 1) / (16 * 128 * 16)
  CHECK(chosen.num_blocks(KvTier::kHot) == (std::int64_t{1} << 30) / kBlockBytes);
  CHECK(small.num_blocks(KvTier::kHot) == 1);
  CHECK(small.num_blocks(KvTier::kWarm) == 0);
  CHECK(small.num_blocks(KvTier::kCold) == 0);
}

TEST_CASE("KvStorage_BlockWritten_LiesAtItsIndexOfEveryTensor") {
  KvStorage storage(layers(), kBlockSize, memory_of(3, 0, 0));
  std::mt19937 random(1);
  const Block block = random_block(random);

  storage.write(hot(1), block);

  auto part = block.begin();
  for (const KvStorage::Tensor& tensor : storage.tensors()) {
    const std::byte* const data = tensor.buffer.data();
    const auto size = static_cast<std::ptrdiff_t>(tensor.block_bytes);
    CHECK(std::equal(part, part + size, data + size));
    CHECK(std::all_of(data, data + size, [](std::byte byte) { return byte == std::byte{0}; }));
    part += size;
  }
  CHECK(part == block.end());
  CHECK(read(storage, hot(1)) == block);
}

TEST_CASE("KvStorage_PagesJoined_AreThoseOfWrittenBlocksOnceEach") {
  // Of each block 512 bytes lie in k0 and as many in v0, less in the others: 4096 blocks fill a large page of both.
  constexpr std::int32_t kBlocks = 6000;
  KvStorage storage(layers(), kBlockSize, memory_of(kBlocks, 0, 0));
  std::mt19937 random(3);
  const std::array<Block, 2> blocks = {random_block(random), random_block(random)};
  for (std::int32_t index = 0; index < kBlocks; ++index) storage.write(hot(index), blocks[index % 2]);

  CHECK_FALSE(storage.join_pages(4095));
  CHECK(storage.join_pages(4096));
  CHECK(storage.join_pages(4096));
  CHECK_FALSE(storage.join_pages(4096));
  CHECK_FALSE(storage.join_pages(kBlocks));

  for (std::int32_t index = 0; index < kBlocks; ++index) REQUIRE(read(storage, hot(index)) == blocks[index % 2]);
}

TEST_CASE("KvStorage_BlockCopied_LeavesTheSourceAndTheOthersAlone") {
  KvStorage storage(layers(), kBlockSize, memory_of(4, 0, 0));
  std::mt19937 random(2);
  std::vector<Block> blocks;
  for (std::int32_t index = 0; index < 4; ++index) {
    blocks.push_back(random_block(random));
    storage.write(hot(index), blocks.back());
  }

  storage.copy(3, 1);
  storage.copy(2, 2);

  CHECK(read(storage, hot(0)) == blocks[0]);
  CHECK(read(storage, hot(1)) == blocks[3]);
  CHECK(read(storage, hot(2)) == blocks[2]);
  CHECK(read(storage, hot(3)) == blocks[3]);
}

/// Every pair of tiers, with a real file, against a plain map of what lies where.
TEST_CASE("KvStorage_RandomMovesThroughAllTiers_KeepEveryByte") {
  const TestFolder folder;
  KvMemory memory = memory_of(4, 5, 6);
  memory.cold_folder = folder.path();
  KvStorage storage(layers(), kBlockSize, memory);
  std::mt19937 random(3);
  const auto below = [&random](std::size_t end) { return static_cast<std::int32_t>(random() % end); };
  std::map<KvPlace, Block> model;
  const auto any_place = [&] {
    const std::int32_t tier = below(3);
    return tier == 0 ? hot(below(4)) : tier == 1 ? warm(below(5)) : cold(below(6));
  };
  for (int step = 0; step < 2000; ++step) {
    const KvPlace from = any_place();
    const KvPlace to = any_place();
    if (below(4) == 0) {
      model[to] = random_block(random);
      storage.write(to, model[to]);
    } else if (from != to && model.contains(from)) {
      storage.move(from, to);
      model[to] = model.extract(from).mapped();
    }
    for (const auto& [place, block] : model) REQUIRE(read(storage, place) == block);
  }
  CHECK(model.size() > 5);
  for (std::int32_t index = 0; index < 5; ++index) {
    if (!model.contains(warm(index))) CHECK_THROWS_AS(read(storage, warm(index)), Error);
  }
}

TEST_CASE("KvStorage_EmptyPlaces_AreNotRead") {
  TestColdFile::Disk disk;
  KvStorage storage(layers(), kBlockSize, memory_of(2, 2, 2), std::make_unique<TestColdFile>(disk));
  std::mt19937 random(4);
  storage.write(warm(0), random_block(random));
  storage.move(warm(0), cold(0));
  storage.move(cold(0), hot(0));

  CHECK(error_of([&] { storage.move(warm(0), hot(1)); }, ErrorCode::kBackend) ==
        "block 0 of the warm KV tier is empty");
  CHECK(error_of([&] { storage.move(warm(1), cold(1)); }, ErrorCode::kBackend) ==
        "block 1 of the warm KV tier is empty");
  CHECK(error_of([&] { read(storage, cold(0)); }, ErrorCode::kBackend) == "block 0 of the test's disk is empty");
  CHECK(error_of([&] { storage.move(cold(1), warm(1)); }, ErrorCode::kBackend) ==
        "block 1 of the test's disk is empty");
}

TEST_CASE("KvStorage_PlaceOutsideItsTier_IsAnInternalError") {
  KvStorage storage(layers(), kBlockSize, memory_of(2, 2, 0));
  Block block(static_cast<std::size_t>(kBlockBytes));

  for (const KvPlace place : {hot(2), hot(-1), warm(2), warm(-1), cold(0)}) {
    CAPTURE(place.index);
    error_of([&] { storage.read(place, block); }, ErrorCode::kInternal);
    error_of([&] { storage.write(place, block); }, ErrorCode::kInternal);
    error_of([&] { storage.move(hot(0), place); }, ErrorCode::kInternal);
  }
  error_of([&] { storage.copy(0, 2); }, ErrorCode::kInternal);
  error_of([&] { storage.read(hot(0), std::span(block).first(8)); }, ErrorCode::kInternal);
}

TEST_CASE("KvStorage_DamagedFile_LosesThatBlockAlone") {
  TestColdFile::Disk disk;
  KvStorage storage(layers(), kBlockSize, memory_of(2, 2, 2), std::make_unique<TestColdFile>(disk));
  std::mt19937 random(5);
  const Block first = random_block(random);
  const Block second = random_block(random);
  storage.write(cold(0), first);
  storage.write(cold(1), second);

  disk.bytes[kColdStride + 1000] ^= std::byte{1};

  CHECK(error_of([&] { storage.move(cold(1), hot(1)); }, ErrorCode::kBackend) ==
        "block 1 of the test's disk is damaged: its checksum is not that of what was written");
  CHECK(error_of([&] { storage.move(cold(1), warm(1)); }, ErrorCode::kBackend) ==
        "block 1 of the test's disk is empty");
  storage.move(cold(0), hot(0));
  CHECK(read(storage, hot(0)) == first);
  storage.write(cold(1), second);
  CHECK(read(storage, cold(1)) == second);
}

TEST_CASE("KvStorage_UnreadableFile_IsAFailureWithItsCause") {
  TestColdFile::Disk disk;
  KvStorage storage(layers(), kBlockSize, memory_of(2, 2, 2), std::make_unique<TestColdFile>(disk));
  storage.move(hot(0), cold(0));

  disk.unreadable = true;

  CHECK(error_of([&] { storage.move(cold(0), hot(0)); }, ErrorCode::kBackend) == "the test's disk cannot be read");
}

TEST_CASE("KvStorage_FullDisk_FailsThatMoveAndTheRestGoesOn") {
  TestColdFile::Disk disk;
  KvStorage storage(layers(), kBlockSize, memory_of(2, 2, 4), std::make_unique<TestColdFile>(disk));
  std::mt19937 random(6);
  const Block block = random_block(random);
  storage.write(cold(0), block);
  storage.write(warm(0), random_block(random));

  disk.size = kColdStride + 100;

  CHECK(error_of([&] { storage.move(warm(0), cold(1)); }, ErrorCode::kBackend) == "the test's disk is full");
  CHECK(error_of([&] { storage.move(cold(1), hot(0)); }, ErrorCode::kBackend) == "block 1 of the test's disk is empty");
  CHECK(error_of([&] { storage.move(warm(0), hot(0)); }, ErrorCode::kBackend) ==
        "block 0 of the warm KV tier is empty");
  storage.move(cold(0), hot(0));
  CHECK(read(storage, hot(0)) == block);
}

TEST_CASE("KvStorage_TwoInOneFolder_DoNotMeetAndLeaveNothing") {
  const TestFolder folder;
  KvMemory memory = memory_of(1, 0, 3);
  memory.cold_folder = folder.path();
  std::mt19937 random(7);
  const Block one = random_block(random);
  const Block two = random_block(random);
  {
    KvStorage first(layers(), kBlockSize, memory);
    KvStorage second(layers(), kBlockSize, memory);
    first.write(cold(2), one);
    second.write(cold(2), two);

    CHECK(read(first, cold(2)) == one);
    CHECK(read(second, cold(2)) == two);
    CHECK(folder.is_empty());  // the files have no names, so that a crash leaves none either
  }
  CHECK(folder.is_empty());
}

}  // namespace genai::runner
