#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace genai {

/// Bytes of host memory that this process can still allocate without swapping: what the kernel calls available, at
/// most what its control groups (v1 or v2) leave. 0 when the system does not tell. Thread-safe.
std::int64_t available_host_memory_bytes();

/// Bytes of this process that are now in physical memory; 0 when the system does not tell. Thread-safe.
std::int64_t resident_set_bytes();

/// Bytes of a line such as "MemAvailable:  123 kB" in the text of /proc/meminfo. For tests.
std::optional<std::int64_t> parse_meminfo(std::string_view text, std::string_view key);

}  // namespace genai
