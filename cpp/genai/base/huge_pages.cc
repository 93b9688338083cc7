#include "genai/base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace genai {

std::byte* map_huge(std::size_t size_bytes) {
  void* const memory =
      mmap(nullptr, size_bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(memory);
  const std::size_t head = (kHugePage - reinterpret_cast<std::uintptr_t>(start) % kHugePage) % kHugePage;
  if (head > 0) munmap(start, head);
  munmap(start + head + size_bytes, kHugePage - head);
#if defined(MADV_HUGEPAGE)
  madvise(start + head, size_bytes, MADV_HUGEPAGE);  // where this fails, small pages do
#endif
  return start + head;
}

}  // namespace genai
