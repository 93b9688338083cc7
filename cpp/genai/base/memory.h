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

/// Where mapped memory comes from.
struct FilePlace {
  std::string file;  ///< device and inode, as the kernel writes them
  std::int64_t offset = 0;

  friend bool operator==(const FilePlace&, const FilePlace&) = default;
};
/// The place of `data` in the file that is mapped there; nullopt when no file is, or the system does not tell. Two
/// places are equal only for the same byte of the same file. Linux only; thread-safe.
std::optional<FilePlace> file_place(const void* data);

/// Bytes of a line such as "MemAvailable:  123 kB" in the text of /proc/meminfo. For tests.
std::optional<std::int64_t> parse_meminfo(std::string_view text, std::string_view key);

}  // namespace genai
