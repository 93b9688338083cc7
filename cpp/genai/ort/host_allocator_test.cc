#include "genai/ort/host_allocator.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace genai::ort {
namespace {

constexpr std::size_t kLarge = HostAllocator::kLargeBytes;
constexpr std::size_t kRegion = HostAllocator::kRegionBytes;

struct Piece {
  unsigned char* memory;
  std::size_t size_bytes;
  unsigned char mark;
};

/// Whether the first, middle and last byte still hold the mark.
bool is_intact(const Piece& piece) {
  return piece.memory[0] == piece.mark && piece.memory[piece.size_bytes / 2] == piece.mark &&
         piece.memory[piece.size_bytes - 1] == piece.mark;
}

/// Allocates and frees at random and checks that no piece was overwritten. Returns the number of damaged pieces.
int use_at_random(HostAllocator& allocator, unsigned seed, int num_steps) {
  std::mt19937 random(seed);
  std::vector<Piece> pieces;
  int damaged = 0;
  const auto free_one = [&](std::size_t index) {
    damaged += is_intact(pieces[index]) ? 0 : 1;
    allocator.free(pieces[index].memory);
    pieces[index] = pieces.back();
    pieces.pop_back();
  };
  for (int step = 0; step < num_steps; ++step) {
    if (pieces.size() > 40 || (!pieces.empty() && random() % 2 == 0)) {
      free_one(random() % pieces.size());
      continue;
    }
    const std::size_t size = 1 + random() % (std::size_t{1} << (random() % 24));
    auto* const memory = static_cast<unsigned char*>(allocator.alloc(size));
    const auto mark = static_cast<unsigned char>(random() % 255 + 1);
    std::memset(memory, mark, size);
    damaged += reinterpret_cast<std::uintptr_t>(memory) % HostAllocator::kAlignment == 0 ? 0 : 1;
    pieces.push_back({memory, size, mark});
  }
  while (!pieces.empty()) free_one(0);
  return damaged;
}

}  // namespace

TEST_CASE("HostAllocator_RandomUse_KeepsPiecesApartAndAligned") {
  HostAllocator allocator(nullptr);

  CHECK(use_at_random(allocator, 1, 5000) == 0);

  CHECK(allocator.mapped_bytes() <= HostAllocator::kMaxKeptBytes);
}

TEST_CASE("HostAllocator_ManyThreads_KeepPiecesApart") {
  HostAllocator allocator(nullptr);
  std::vector<int> damaged(4, -1);
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < damaged.size(); ++i) {
      threads.emplace_back([&allocator, &damaged, i] { damaged[i] = use_at_random(allocator, i, 1000); });
    }
  }

  CHECK(damaged == std::vector<int>{0, 0, 0, 0});
}

TEST_CASE("HostAllocator_FreedNeighbours_AreJoined") {
  HostAllocator allocator(nullptr);
  std::vector<void*> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(allocator.alloc(kRegion / 8 - HostAllocator::kAlignment));
  CHECK(allocator.mapped_bytes() == kRegion);

  for (const int i : {1, 3, 2, 0, 7, 5, 6, 4}) allocator.free(pieces[static_cast<std::size_t>(i)]);
  void* const whole = allocator.alloc(kRegion - HostAllocator::kAlignment);

  CHECK(allocator.mapped_bytes() == kRegion);
  allocator.free(whole);
}

TEST_CASE("HostAllocator_PieceOfItsOwnRegion_IsUsedAgain") {
  HostAllocator allocator(nullptr);
  void* const first = allocator.alloc(3 * kRegion);
  allocator.free(first);

  void* const small = allocator.alloc(kLarge);
  void* const again = allocator.alloc(3 * kRegion - 100);

  CHECK(again == first);
  CHECK(allocator.mapped_bytes() == 4 * kRegion + (std::size_t{2} << 20));  // the header needs one more huge page
  allocator.free(small);
  allocator.free(again);
}

TEST_CASE("HostAllocator_MuchFreed_GoesBackToTheSystem") {
  HostAllocator allocator(nullptr);
  std::vector<void*> pieces;
  for (int i = 0; i < 20; ++i) pieces.push_back(allocator.alloc(kRegion / 2 + 1));
  CHECK(allocator.mapped_bytes() == 20 * kRegion);

  for (void* const piece : pieces) allocator.free(piece);

  CHECK(allocator.mapped_bytes() == HostAllocator::kMaxKeptBytes);
  allocator.trim();
  CHECK(allocator.mapped_bytes() == 0);
}

TEST_CASE("HostAllocator_NothingOrTooMuch_GivesNull") {
  HostAllocator allocator(nullptr);

  CHECK(allocator.alloc(0) == nullptr);
  CHECK(allocator.alloc(SIZE_MAX) == nullptr);
  CHECK(allocator.alloc(std::size_t{1} << 60) == nullptr);
  allocator.free(nullptr);
}

TEST_CASE("HostAllocator_UsedBytes_CountLargePiecesInUse") {
  HostAllocator allocator(nullptr);
  void* const small = allocator.alloc(100);
  CHECK(allocator.used_bytes() == 0);

  void* const first = allocator.alloc(kLarge);
  const std::size_t one = allocator.used_bytes();
  void* const second = allocator.alloc(3 * kLarge);

  CHECK(one >= kLarge);
  CHECK(one < 2 * kLarge);
  CHECK(allocator.used_bytes() >= one + 3 * kLarge);
  allocator.free(second);
  CHECK(allocator.used_bytes() == one);
  allocator.free(first);
  allocator.free(small);
  CHECK(allocator.used_bytes() == 0);
}

}  // namespace genai::ort
