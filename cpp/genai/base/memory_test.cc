#include "genai/base/memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace genai {

TEST_CASE("Meminfo_KeyPresent_GivesBytes") {
  const char* text = "MemTotal:       24300000 kB\nMemFree:  5 kB\nMemAvailable:    1024 kB\n";

  CHECK(parse_meminfo(text, "MemAvailable").value() == 1024 * 1024);
  CHECK(parse_meminfo(text, "MemFree").value() == 5 * 1024);
}

TEST_CASE("Meminfo_KeyAbsentOrBroken_GivesNothing") {
  CHECK_FALSE(parse_meminfo("MemTotal: 5 kB\n", "MemAvailable").has_value());
  CHECK_FALSE(parse_meminfo("MemAvailable: x kB\n", "MemAvailable").has_value());
  CHECK_FALSE(parse_meminfo("", "MemAvailable").has_value());
}

#if defined(__linux__)
TEST_CASE("ReleaseFilePages_MappedFile_LeavesMemoryAndStaysReadable") {
  constexpr std::size_t kSize = std::size_t{32} << 20;
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  const std::vector<char> content(kSize, 'a');
  REQUIRE(std::fwrite(content.data(), 1, kSize, file) == kSize);
  std::fflush(file);
  auto* const mapped = static_cast<char*>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0));
  REQUIRE(mapped != MAP_FAILED);
  const auto sum = [&] { return std::count(mapped, mapped + kSize, 'a'); };
  CHECK(sum() == static_cast<std::ptrdiff_t>(kSize));
  const std::int64_t before = resident_set_bytes();

  release_file_pages(mapped, kSize);
  CHECK(before - resident_set_bytes() > static_cast<std::int64_t>(kSize) * 3 / 4);
  CHECK(sum() == static_cast<std::ptrdiff_t>(kSize));

  // A page that was written to must not go back to the file's content.
  mapped[kSize / 2] = 'b';
  release_file_pages(mapped, kSize);
  CHECK(mapped[kSize / 2] == 'b');
  munmap(mapped, kSize);
  std::fclose(file);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("TrimHeap_HolesAmongUsedPieces_LeaveMemory") {
  constexpr std::size_t kPiece = std::size_t{64} << 10;  // not a mapping of its own
  std::vector<std::unique_ptr<char[]>> freed;
  std::vector<std::unique_ptr<char[]>> kept;
  for (int i = 0; i < 512; ++i) {
    freed.push_back(std::make_unique<char[]>(kPiece));
    kept.push_back(std::make_unique<char[]>(64));
  }
  freed.clear();
  const std::int64_t before = resident_set_bytes();

  trim_heap();

  CHECK(before - resident_set_bytes() > static_cast<std::int64_t>(kPiece) * 512 / 2);
  CHECK(kept.back()[63] == 0);
}
#endif

TEST_CASE("ReleaseFilePages_Allocated_KeepsContent") {
  std::vector<char> memory(8 << 20, 'x');

  release_file_pages(memory.data(), memory.size());

  CHECK(std::count(memory.begin(), memory.end(), 'x') == 8 << 20);
}

TEST_CASE("ResidentSet_MemoryTouched_Grows") {
  const std::int64_t before = resident_set_bytes();
  const std::vector<char> touched(64 << 20, 1);

  CHECK(before > 0);
  CHECK(resident_set_bytes() - before > 32 << 20);
  CHECK(touched.back() == 1);
}

TEST_CASE("AvailableMemory_ThisMachine_IsPositive") {
  CHECK(available_host_memory_bytes() > 0);
}
#endif

}  // namespace genai
