#include "genai/tensor/buffer.h"

#include "genai/base/error.h"
#include "genai/base/huge_pages.h"
#include "genai/base/memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

namespace genai::tensor {
namespace {

std::ptrdiff_t count_of(const Buffer& buffer, std::byte value) {
  return std::count(buffer.data(), buffer.data() + buffer.size_bytes(), value);
}

}  // namespace

TEST_CASE("Buffer_New_IsZeroAndPageAligned") {
  const Buffer buffer(10000);

  CHECK(buffer.size_bytes() == 10000);
  CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096 == 0);
  CHECK(count_of(buffer, std::byte{0}) == 10000);
}

TEST_CASE("Buffer_OfSmallPages_CostsWhatIsWritten") {
  constexpr std::size_t kStep = std::size_t{2} << 20;  // a large page
  const std::int64_t before = resident_set_bytes();
  const Buffer buffer(64 * kStep, Pages::kSmall);

  for (std::size_t offset = 0; offset < buffer.size_bytes(); offset += kStep) buffer.data()[offset] = std::byte{1};

  CHECK(resident_set_bytes() - before < static_cast<std::int64_t>(8 * kStep));
}

TEST_CASE("Buffer_JoinedPages_KeepTheirContentAndCostNothing") {
  Buffer buffer(3 * kHugePage + 1, Pages::kSmall);
  std::fill_n(buffer.data() + kHugePage, kHugePage, std::byte{5});
  const std::int64_t before = resident_set_bytes();

  buffer.join_pages(kHugePage);

  CHECK(resident_set_bytes() - before < static_cast<std::int64_t>(kHugePage / 2));
  CHECK(count_of(buffer, std::byte{5}) == static_cast<std::ptrdiff_t>(kHugePage));
  CHECK(buffer.data()[kHugePage] == std::byte{5});
  CHECK(buffer.data()[2 * kHugePage - 1] == std::byte{5});
  CHECK_THROWS_AS(buffer.join_pages(3 * kHugePage), Error);
  CHECK_THROWS_AS(buffer.join_pages(4096), Error);
}

TEST_CASE("Buffer_LargerThanAnyAddress_IsRefused") {
  for (const Pages pages : {Pages::kSystem, Pages::kSmall}) {
    CHECK_THROWS_AS(Buffer(std::numeric_limits<std::size_t>::max() - 1, pages), Error);
    CHECK_THROWS_AS(Buffer(std::numeric_limits<std::size_t>::max() - kHugePage, pages), Error);
  }
}

TEST_CASE("Buffer_OfSizeZero_HasNoMemory") {
  const Buffer buffer(0);

  CHECK(buffer.data() == nullptr);
  CHECK(buffer.size_bytes() == 0);
}

TEST_CASE("Buffer_Untouched_TakesNoPhysicalMemory") {
  const std::int64_t before = resident_set_bytes();
  const Buffer buffer(std::size_t{1} << 30);

  CHECK(resident_set_bytes() - before < 16 << 20);
}

TEST_CASE("Buffer_Moved_LeavesTheOtherEmpty") {
  Buffer first(64);
  std::byte* const data = first.data();
  Buffer second(std::move(first));
  Buffer third;
  third = std::move(second);

  CHECK(third.data() == data);
  CHECK(third.size_bytes() == 64);
}

TEST_CASE("Buffer_Discard_ZeroesExactlyTheRange") {
  for (const auto& [offset, size] : {std::pair<std::size_t, std::size_t>{0, 20000},
                                     {1, 10},
                                     {4000, 200},
                                     {4096, 4096},
                                     {100, 12000},
                                     {8192, 0},
                                     {19999, 1}}) {
    CAPTURE(offset);
    CAPTURE(size);
    Buffer buffer(20000);
    std::memset(buffer.data(), 7, buffer.size_bytes());

    buffer.discard(offset, size);

    CHECK(count_of(buffer, std::byte{0}) == static_cast<std::ptrdiff_t>(size));
    CHECK(std::count(buffer.data() + offset, buffer.data() + offset + size, std::byte{0}) ==
          static_cast<std::ptrdiff_t>(size));
  }
}

TEST_CASE("Buffer_DiscardOutside_Throws") {
  Buffer buffer(100);

  CHECK_THROWS_AS(buffer.discard(50, 51), Error);
}

TEST_CASE("Buffer_DiscardOfTouchedPages_GivesMemoryBack") {
  Buffer buffer(std::size_t{64} << 20);
  std::memset(buffer.data(), 1, buffer.size_bytes());
  const std::int64_t touched = resident_set_bytes();

  buffer.discard(0, buffer.size_bytes());

  CHECK(touched - resident_set_bytes() > 48 << 20);
}

}  // namespace genai::tensor
