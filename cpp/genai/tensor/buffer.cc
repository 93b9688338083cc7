#include "genai/tensor/buffer.h"

#include "genai/base/error.h"
#include "genai/base/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace genai::tensor {

Buffer::Buffer(std::size_t size_bytes, Pages pages) {
  if (size_bytes == 0) return;
  const bool is_small = pages == Pages::kSmall;
  const std::size_t mapped = whole_pages(size_bytes) + (is_small ? kHugePage : 0);
  void* memory = mapped < size_bytes ? MAP_FAILED
                                     : mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::kResourceExhausted,
                "no memory for a buffer of " + std::to_string(size_bytes) +
                    " bytes. Use shorter contexts, fewer sequences at once, or a machine with more memory.");
  }
  if (is_small) memory = keep_aligned(memory, whole_pages(size_bytes));
#ifdef MADV_NOHUGEPAGE
  // Refused by kernels that have no large pages, where it is not needed.
  if (is_small) (void)madvise(memory, size_bytes, MADV_NOHUGEPAGE);
#endif
  data_ = static_cast<std::byte*>(memory);
  size_bytes_ = size_bytes;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

Buffer::~Buffer() {
  reset();
}

void Buffer::join_pages(std::size_t offset) {
  check(offset % kHugePage == 0 && offset + kHugePage <= size_bytes_, "pages are joined that leave the buffer");
  genai::join_pages(data_ + offset);
}

void Buffer::discard(std::size_t offset, std::size_t size_bytes) {
  check(offset + size_bytes <= size_bytes_, "a discarded range leaves the buffer");
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t end = offset + size_bytes;
  const std::size_t first_page = std::min((offset + page - 1) / page * page, end);
  const std::size_t end_page = std::max(end / page * page, first_page);
  std::memset(data_ + offset, 0, first_page - offset);
  std::memset(data_ + end_page, 0, end - end_page);
  if (end_page > first_page && madvise(data_ + first_page, end_page - first_page, MADV_DONTNEED) != 0) {
    std::memset(data_ + first_page, 0, end_page - first_page);
  }
}

void Buffer::reset() noexcept {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
}

}  // namespace genai::tensor
