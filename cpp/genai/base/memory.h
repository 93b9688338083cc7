#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace genai {

/// Bytes of host memory that this process can still allocate without swapping: what the kernel calls available, at
/// most what its control groups (v1 or v2) leave. 0 when the system does not tell. Thread-safe.
std::int64_t available_host_memory_bytes();

/// Bytes of this process that are now in physical memory; 0 when the system does not tell. Thread-safe.
std::int64_t resident_set_bytes();

/// Lets the pages inside of [data, data + size_bytes) leave physical memory if all of them are a file's: they stay
/// readable, from the file. Memory that was allocated or written to is left alone. Linux only; thread-safe.
void release_file_pages(const void* data, std::size_t size_bytes);

/// Gives freed memory of the heap back to the system, also where something after it is still used: what reading a
/// tokenizer or a graph leaves. Takes a millisecond or two. With glibc only; thread-safe.
void trim_heap();

/// Bytes of a line such as "MemAvailable:  123 kB" in the text of /proc/meminfo. For tests.
std::optional<std::int64_t> parse_meminfo(std::string_view text, std::string_view key);

}  // namespace genai
