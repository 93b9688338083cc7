#include "genai/base/file_mapping.h"

#include "genai/base/huge_pages.h"
#include "genai/base/read_file.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <new>
#include <optional>
#include <string>

namespace genai {

FileMapping::FileMapping(int descriptor, std::int64_t offset, std::size_t size_bytes)
    : size_bytes_(whole_pages(size_bytes)) {
  void* const memory = mmap(nullptr, size_bytes_ + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  start_ = keep_aligned(memory, size_bytes_);
  constexpr int kFlags = MAP_SHARED | MAP_FIXED;
  if (mmap(start_, size_bytes_, PROT_READ, kFlags, descriptor, static_cast<off_t>(offset)) == MAP_FAILED) {
    munmap(start_, size_bytes_);
    throw std::bad_alloc();
  }
#if defined(MADV_HUGEPAGE)
  madvise(start_, size_bytes_, MADV_HUGEPAGE);  // where this fails, small pages do
#endif
}

FileMapping::~FileMapping() {
  munmap(start_, size_bytes_);
}

void FileMapping::release_pages() const {
  madvise(start_, size_bytes_, MADV_DONTNEED);
}

bool FileMapping::is_fast() const {
  constexpr std::size_t kFew = 4 * kHugePage;  // in the tables of the processor with small pages, too
  if (size_bytes_ < kFew) return true;
  const std::optional<std::string> pages = read_file("/sys/kernel/mm/transparent_hugepage/enabled");
  if (!pages || pages->find("[never]") != std::string::npos) return true;
  const auto address = reinterpret_cast<std::uintptr_t>(start_);
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool is_ours = false;
  long long resident = 0;
  while (std::getline(maps, line)) {
    char* rest = nullptr;
    const std::uintptr_t start = std::strtoull(line.c_str(), &rest, 16);
    if (rest != line.c_str() && *rest == '-') {
      if (is_ours) return false;
      is_ours = start <= address && address < std::strtoull(rest + 1, nullptr, 16);
    } else if (is_ours) {
      const long long kilobytes = std::atoll(line.substr(line.find(':') + 1).c_str());
      if (line.starts_with("Rss:")) resident = kilobytes;
      if (line.starts_with("FilePmdMapped:")) return kilobytes >= resident / 4 * 3;
    }
  }
  return false;
}

}  // namespace genai
