#include "genai/ort/host_allocator.h"

#include "genai/base/huge_pages.h"

#include "onnxruntime/abi.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace genai::ort {
namespace {

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

/// Stands in the kAlignment bytes before each piece, and at the beginning of each free part of a region.
struct HostAllocator::Chunk {
  void* malloc_start;      ///< of a small piece, which has no other field; nullptr for a chunk of a region
  std::size_t size_bytes;  ///< this header included
  Chunk* previous;         ///< in the region; nullptr for the first one
  bool is_last;            ///< in the region
  bool is_free;

  std::byte* memory() { return reinterpret_cast<std::byte*>(this) + kAlignment; }
  Chunk* next() {
    return is_last ? nullptr : reinterpret_cast<Chunk*>(reinterpret_cast<std::byte*>(this) + size_bytes);
  }
  bool is_whole_region() const { return previous == nullptr && is_last; }
};

struct HostAllocator::Table : ort_abi::AllocatorTable {
  explicit Table(HostAllocator* allocator) : ort_abi::AllocatorTable{}, owner(allocator) {
    version = ort_abi::kFloorApi;
    alloc = [](ort_abi::AllocatorTable* self, std::size_t size) {
      return static_cast<Table*>(self)->owner->alloc(size);
    };
    reserve = alloc;
    free = [](ort_abi::AllocatorTable* self, void* memory) { static_cast<Table*>(self)->owner->free(memory); };
    info = [](const ort_abi::AllocatorTable* self) { return static_cast<const Table*>(self)->owner->memory_info_; };
  }

  HostAllocator* owner;
};

HostAllocator::HostAllocator(const ort_abi::MemoryInfo* memory_info)
    : memory_info_(memory_info), table_(std::make_unique<Table>(this)) {
  static_assert(sizeof(Chunk) <= kAlignment);
}

HostAllocator::~HostAllocator() {
  drop_kept_regions(0);
}

ort_abi::Allocator* HostAllocator::handle() {
  return reinterpret_cast<ort_abi::Allocator*>(table_.get());
}

void* HostAllocator::alloc(std::size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > PTRDIFF_MAX / 2) return nullptr;
  if (size_bytes < kLargeBytes) return alloc_small(size_bytes);
  const std::size_t chunk_bytes = round_up(size_bytes, kAlignment) + kAlignment;
  const std::lock_guard lock(mutex_);
  Chunk* chunk = find_free(chunk_bytes);
  if (chunk == nullptr) chunk = map_region(chunk_bytes);
  if (chunk == nullptr) return nullptr;
  chunk->is_free = false;
  // A region of its own is left whole, so that the same piece finds it again.
  if (!chunk->is_whole_region() || chunk->size_bytes <= kRegionBytes) split(chunk, chunk_bytes);
  used_bytes_ += chunk->size_bytes;
  return chunk->memory();
}

void* HostAllocator::alloc_small(std::size_t size_bytes) {
  void* const start = std::malloc(size_bytes + 2 * kAlignment);
  if (start == nullptr) return nullptr;
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(start);
  std::byte* const memory = static_cast<std::byte*>(start) + (round_up(first + kAlignment, kAlignment) - first);
  reinterpret_cast<Chunk*>(memory - kAlignment)->malloc_start = start;
  return memory;
}

void HostAllocator::free(void* memory) {
  if (memory == nullptr) return;
  auto* chunk = reinterpret_cast<Chunk*>(static_cast<std::byte*>(memory) - kAlignment);
  if (chunk->malloc_start != nullptr) {
    std::free(chunk->malloc_start);
    return;
  }
  const std::lock_guard lock(mutex_);
  used_bytes_ -= chunk->size_bytes;
  if (Chunk* const next = chunk->next(); next != nullptr && next->is_free) {
    take_free(next);
    join_next(chunk);
  }
  if (Chunk* const previous = chunk->previous; previous != nullptr && previous->is_free) {
    take_free(previous);
    chunk = previous;
    join_next(chunk);
  }
  put_free(chunk);
  drop_kept_regions(kMaxKeptBytes);
}

/// The smallest free chunk that is large enough, taken from its set; nullptr when there is none.
HostAllocator::Chunk* HostAllocator::find_free(std::size_t chunk_bytes) {
  auto found = free_.lower_bound({chunk_bytes, nullptr});
  if (found == free_.end()) {
    found = free_whole_.lower_bound({chunk_bytes, nullptr});
    // A region of its own is not given to a much smaller piece.
    const bool fits =
        found != free_whole_.end() && found->first <= std::max(kRegionBytes, 2 * round_up(chunk_bytes, kHugePage));
    if (!fits) return nullptr;
  }
  Chunk* const chunk = found->second;
  take_free(chunk);
  return chunk;
}

HostAllocator::Chunk* HostAllocator::map_region(std::size_t chunk_bytes) {
  const std::size_t size = std::max(kRegionBytes, round_up(chunk_bytes, kHugePage));
  std::byte* const memory = map_huge(size);
  if (memory == nullptr) return nullptr;
  mapped_bytes_ += size;
  return new (memory)
      Chunk{.malloc_start = nullptr, .size_bytes = size, .previous = nullptr, .is_last = true, .is_free = false};
}

/// Cuts what is more than `chunk_bytes` off, if it is worth it.
void HostAllocator::split(Chunk* chunk, std::size_t chunk_bytes) {
  const std::size_t rest = chunk->size_bytes - chunk_bytes;
  if (rest < kLargeBytes) return;
  auto* const tail = new (reinterpret_cast<std::byte*>(chunk) + chunk_bytes) Chunk{
      .malloc_start = nullptr, .size_bytes = rest, .previous = chunk, .is_last = chunk->is_last, .is_free = false};
  chunk->size_bytes = chunk_bytes;
  chunk->is_last = false;
  if (Chunk* const next = tail->next()) next->previous = tail;
  put_free(tail);
}

/// Requires: the next chunk is in no set.
void HostAllocator::join_next(Chunk* chunk) {
  const Chunk* const next = chunk->next();
  chunk->size_bytes += next->size_bytes;
  chunk->is_last = next->is_last;
  if (Chunk* const after = chunk->next()) after->previous = chunk;
}

void HostAllocator::put_free(Chunk* chunk) {
  chunk->is_free = true;
  const bool whole = chunk->is_whole_region();
  (whole ? free_whole_ : free_).emplace(chunk->size_bytes, chunk);
  if (whole) whole_bytes_ += chunk->size_bytes;
}

void HostAllocator::take_free(Chunk* chunk) {
  chunk->is_free = false;
  const bool whole = chunk->is_whole_region();
  (whole ? free_whole_ : free_).erase({chunk->size_bytes, chunk});
  if (whole) whole_bytes_ -= chunk->size_bytes;
}

/// Gives free regions back, the smallest first, until they are at most `limit_bytes` together.
void HostAllocator::drop_kept_regions(std::size_t limit_bytes) {
  while (whole_bytes_ > limit_bytes) {
    Chunk* const chunk = free_whole_.begin()->second;
    take_free(chunk);
    mapped_bytes_ -= chunk->size_bytes;
    munmap(chunk, chunk->size_bytes);
  }
}

void HostAllocator::trim() {
  const std::lock_guard lock(mutex_);
  drop_kept_regions(0);
}

std::size_t HostAllocator::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  return mapped_bytes_;
}

std::size_t HostAllocator::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

}  // namespace genai::ort
