#include "genai/base/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace genai {
namespace {

#if defined(MADV_COLLAPSE)
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // Linux 6.1; older systems refuse it
#endif

}  // namespace

std::byte* map_huge(std::size_t size_bytes) {
  void* const memory =
      mmap(nullptr, size_bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::byte* const start = keep_aligned(memory, size_bytes);
#if defined(MADV_HUGEPAGE)
  madvise(start, size_bytes, MADV_HUGEPAGE);  // where this fails, small pages do
#endif
  return start;
}

std::size_t whole_pages(std::size_t size_bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (size_bytes + page - 1) / page * page;
}

std::byte* keep_aligned(void* memory, std::size_t size_bytes) {
  auto* const first = static_cast<std::byte*>(memory);
  const std::size_t head = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
  if (head > 0) munmap(first, head);
  munmap(first + head + size_bytes, kHugePage - head);
  return first + head;
}

void join_pages([[maybe_unused]] std::byte* start) {
#if defined(MADV_HUGEPAGE)
  if (madvise(start, kHugePage, MADV_HUGEPAGE) == 0) madvise(start, kHugePage, kCollapse);
#endif
}

}  // namespace genai
