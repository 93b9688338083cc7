#include "genai/kernels/weight_memory.h"

#include "genai/base/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>

namespace genai::kernels {
namespace {

constexpr std::size_t kAlignment = 64;
/// Address space of a chunk; only what is written takes memory.
constexpr std::size_t kChunkBytes = std::size_t{64} << 20;

/// Of all chunks, and what is counted beside them.
std::atomic<std::size_t>& used_bytes() {
  static std::atomic<std::size_t> bytes{0};
  return bytes;
}

/// Zeros at an address that is a multiple of a huge page.
class Chunk {
 public:
  explicit Chunk(std::size_t size_bytes)
      : size_bytes_((size_bytes + kHugePage - 1) / kHugePage * kHugePage), start_(map_huge(size_bytes_)) {
    if (start_ == nullptr) throw std::bad_alloc();
  }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  ~Chunk() {
    used_bytes() -= used_;
    munmap(start_, size_bytes_);
  }

  /// nullptr when it does not fit.
  std::byte* take(std::size_t size_bytes) {
    if (size_bytes > size_bytes_ - used_) return nullptr;
    std::byte* const taken = start_ + used_;
    const std::size_t before = used_;
    used_ = std::min(size_bytes_, used_ + (size_bytes + kAlignment - 1) / kAlignment * kAlignment);
    used_bytes() += used_ - before;
    return taken;
  }

 private:
  std::size_t size_bytes_;
  std::byte* start_;
  std::size_t used_ = 0;
};

}  // namespace

std::shared_ptr<std::byte> allocate_weights(std::size_t size_bytes) {
  static std::mutex mutex;
  static auto& current = *new std::weak_ptr<Chunk>;
  const std::lock_guard lock(mutex);
  if (const std::shared_ptr<Chunk> chunk = current.lock()) {
    if (std::byte* const taken = chunk->take(size_bytes)) return {chunk, taken};
  }
  const auto chunk = std::make_shared<Chunk>(std::max(size_bytes, kChunkBytes));
  std::byte* const taken = chunk->take(size_bytes);
  // A large matrix has a chunk of its own; the one before it goes on.
  if (size_bytes < kChunkBytes) current = chunk;
  return {chunk, taken};
}

CountedWeights::~CountedWeights() {
  used_bytes() -= size_bytes_;
}

void CountedWeights::add(std::size_t size_bytes) {
  size_bytes_ += size_bytes;
  used_bytes() += size_bytes;
}

std::size_t weight_bytes() {
  return used_bytes();
}

}  // namespace genai::kernels
