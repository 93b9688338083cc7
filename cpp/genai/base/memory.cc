#include "genai/base/memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "genai/base/cpu.h"
#include "genai/base/read_file.h"

namespace genai {
namespace {

std::optional<std::int64_t> read_integer(const std::string& path) {
  const std::optional<std::string> text = read_file(path);
  if (!text) return std::nullopt;
  char* end = nullptr;
  const long long value = std::strtoll(text->c_str(), &end, 10);
  if (end == text->c_str()) return std::nullopt;  // cgroup v2 writes "max" for no limit
  return value;
}

/// Value of `key` in the "key value" lines of a memory.stat file; 0 when absent.
std::int64_t read_stat(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  std::int64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file;  ///< key in memory.stat: page cache that the kernel drops under pressure
};

/// What the group `path` below `root` and its parents leave; nullopt without a limit.
std::optional<std::int64_t> group_headroom(const std::string& root, std::string path, const GroupFiles& files) {
  std::optional<std::int64_t> smallest;
  while (true) {
    const std::string folder = root + path + "/";
    const std::optional<std::int64_t> limit = read_integer(folder + files.limit);
    const std::optional<std::int64_t> usage = read_integer(folder + files.usage);
    if (limit && usage) {
      const std::int64_t reclaimable = read_stat(folder + "memory.stat", files.inactive_file);
      const std::int64_t left = std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *usage - reclaimable));
      if (!smallest || left < *smallest) smallest = left;
    }
    if (path.empty()) return smallest;
    const std::size_t slash = path.rfind('/');
    path.resize(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace

std::optional<std::int64_t> parse_meminfo(std::string_view text, std::string_view key) {
  std::istringstream in{std::string(text)};
  std::string line;
  const std::string prefix = std::string(key) + ":";
  while (std::getline(in, line)) {
    if (line.compare(0, prefix.size(), prefix) != 0) continue;
    char* end = nullptr;
    const char* const start = line.c_str() + prefix.size();
    const long long kilobytes = std::strtoll(start, &end, 10);
    if (end == start || kilobytes < 0) return std::nullopt;
    return kilobytes * 1024;
  }
  return std::nullopt;
}

std::int64_t available_host_memory_bytes() {
  std::optional<std::int64_t> available;
  if (const auto text = read_file("/proc/meminfo")) available = parse_meminfo(*text, "MemAvailable");
  if (const auto groups = read_file("/proc/self/cgroup")) {
    const auto consider = [&available](std::optional<std::int64_t> bytes) {
      if (bytes && (!available || *bytes < *available)) available = bytes;
    };
    if (const auto path = parse_cgroup_path(*groups, "")) {
      consider(group_headroom("/sys/fs/cgroup", *path, {"memory.max", "memory.current", "inactive_file"}));
    }
    if (const auto path = parse_cgroup_path(*groups, "memory")) {
      consider(group_headroom("/sys/fs/cgroup/memory", *path,
                              {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}));
    }
  }
  return available.value_or(0);
}

std::int64_t resident_set_bytes() {
#if defined(__linux__)
  std::ifstream file("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  if (file >> total_pages >> resident_pages) return resident_pages * sysconf(_SC_PAGESIZE);
#endif
  return 0;
}

#if defined(__linux__)
namespace {

/// Whether all pages [first, end) that are in memory are a file's, by the kernel's table of this process.
bool are_file_pages(std::uintptr_t first, std::uintptr_t end) {
  constexpr std::uint64_t kOfFile = 1ULL << 61;
  constexpr std::uint64_t kSwapped = 1ULL << 62;
  constexpr std::uint64_t kPresent = 1ULL << 63;
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::array<std::uint64_t, 1024> entries{};
  bool all = true;
  while (all && first < end) {
    const std::size_t count = std::min<std::size_t>(entries.size(), end - first);
    const auto wanted = static_cast<ssize_t>(count * sizeof(std::uint64_t));
    all = pread(file, entries.data(), static_cast<std::size_t>(wanted),
                static_cast<off_t>(first * sizeof(std::uint64_t))) == wanted;
    for (std::size_t i = 0; all && i < count; ++i) {
      all = (entries[i] & kSwapped) == 0 && ((entries[i] & kPresent) == 0 || (entries[i] & kOfFile) != 0);
    }
    first += count;
  }
  close(file);
  return all;
}

}  // namespace

void release_file_pages(const void* data, std::size_t size_bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (start + page - 1) / page;
  const std::uintptr_t end = (start + size_bytes) / page;
  if (first >= end || !are_file_pages(first, end)) return;
  madvise(reinterpret_cast<void*>(first * page), (end - first) * page, MADV_DONTNEED);
}
#else
void release_file_pages(const void* /*data*/, std::size_t /*size_bytes*/) {}
#endif

void trim_heap() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace genai
