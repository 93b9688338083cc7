#include "genai/base/memory.h"

#include <doctest/doctest.h>

#include <vector>

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
