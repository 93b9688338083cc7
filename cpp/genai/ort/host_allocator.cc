#include "genai/ort/host_allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "onnxruntime/abi.h"

namespace genai::ort {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
/// Size of the regions for weights; a larger weight has a region of its own.
constexpr std::size_t kRegion = std::size_t{16} << 20;
/// Working memory of this size and above comes from blocks of its own.
constexpr std::size_t kLarge = std::size_t{1} << 20;
/// Free blocks are kept up to this sum; the logits of a long prompt chunk are one such block.
constexpr std::size_t kMaxKept = std::size_t{256} << 20;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

/// Memory from the system that starts at a huge page; nullptr when there is none. `size_bytes`: a multiple of kHugePage.
std::byte* map_huge(std::size_t size_bytes) {
  void* const memory = mmap(nullptr, size_bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t aligned = round_up(start, kHugePage);
  if (aligned > start) munmap(memory, aligned - start);
  const std::uintptr_t tail = start + kHugePage - aligned;
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + size_bytes), tail);
  auto* const result = reinterpret_cast<std::byte*>(aligned);
#if defined(MADV_HUGEPAGE)
  madvise(result, size_bytes, MADV_HUGEPAGE);  // where this fails, small pages do
#endif
  return result;
}

}  // namespace

/// A piece of memory from the system; its description stands at its beginning.
struct HostAllocator::Region {
  std::size_t size_bytes;  ///< this header included
  std::size_t used_bytes;  ///< cut off so far, this header included
  std::size_t num_pieces;  ///< not yet freed
  bool is_block;           ///< one piece of working memory, kept when freed
};

/// Stands in the kAlignment bytes before each piece.
struct HostAllocator::Header {
  void* start;     ///< what malloc returned; nullptr when the piece is of a region
  Region* region;  ///< nullptr when the piece is malloc's
};

struct HostAllocator::Table : ort_abi::AllocatorTable {
  explicit Table(HostAllocator* allocator)
      : ort_abi::AllocatorTable{.version = ort_abi::kFloorApi,
                                .alloc = &alloc_entry,
                                .free = &free_entry,
                                .info = &info_entry,
                                .reserve = &reserve_entry,
                                .get_stats = nullptr,
                                .alloc_on_stream = nullptr,
                                .shrink = nullptr},
        owner(allocator) {}

  static HostAllocator* owner_of(ort_abi::AllocatorTable* self) { return static_cast<Table*>(self)->owner; }
  static void* alloc_entry(ort_abi::AllocatorTable* self, std::size_t size) { return owner_of(self)->alloc(size); }
  static void* reserve_entry(ort_abi::AllocatorTable* self, std::size_t size) { return owner_of(self)->reserve(size); }
  static void free_entry(ort_abi::AllocatorTable* self, void* memory) { owner_of(self)->free(memory); }
  static const ort_abi::MemoryInfo* info_entry(const ort_abi::AllocatorTable* self) {
    return static_cast<const Table*>(self)->owner->memory_info_;
  }

  HostAllocator* owner;
};

HostAllocator::HostAllocator(const ort_abi::MemoryInfo* memory_info)
    : memory_info_(memory_info), table_(std::make_unique<Table>(this)) {
  static_assert(sizeof(Header) <= kAlignment && sizeof(Region) <= kAlignment);
}

HostAllocator::~HostAllocator() {
  for (Region* const region : kept_) munmap(region, region->size_bytes);
  if (current_ != nullptr && current_->num_pieces == 0) munmap(current_, current_->size_bytes);
}

ort_abi::Allocator* HostAllocator::handle() { return reinterpret_cast<ort_abi::Allocator*>(table_.get()); }

void* HostAllocator::alloc(std::size_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  return size_bytes < kLarge ? alloc_small(size_bytes) : alloc_block(size_bytes);
}

void* HostAllocator::alloc_small(std::size_t size_bytes) {
  void* const start = std::malloc(size_bytes + 2 * kAlignment);
  if (start == nullptr) return nullptr;
  const std::uintptr_t address = round_up(reinterpret_cast<std::uintptr_t>(start) + kAlignment, kAlignment);
  auto* const memory = reinterpret_cast<std::byte*>(address);
  *reinterpret_cast<Header*>(memory - kAlignment) = {.start = start, .region = nullptr};
  return memory;
}

void* HostAllocator::alloc_block(std::size_t size_bytes) {
  const std::size_t needed = size_bytes + 2 * kAlignment;
  const std::lock_guard lock(mutex_);
  Region* block = nullptr;
  for (Region* const kept : kept_) {
    const bool fits = kept->size_bytes >= needed && kept->size_bytes <= 2 * round_up(needed, kHugePage);
    if (fits && (block == nullptr || kept->size_bytes < block->size_bytes)) block = kept;
  }
  if (block != nullptr) {
    std::erase(kept_, block);
    kept_bytes_ -= block->size_bytes;
  } else {
    const std::size_t size = round_up(needed, kHugePage);
    std::byte* const memory = map_huge(size);
    if (memory == nullptr) return nullptr;
    block = reinterpret_cast<Region*>(memory);
    *block = {.size_bytes = size, .used_bytes = size, .num_pieces = 1, .is_block = true};
    mapped_bytes_ += size;
  }
  std::byte* const piece = reinterpret_cast<std::byte*>(block) + 2 * kAlignment;
  *reinterpret_cast<Header*>(piece - kAlignment) = {.start = nullptr, .region = block};
  return piece;
}

void* HostAllocator::reserve(std::size_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  const std::size_t needed = round_up(size_bytes, kAlignment) + kAlignment;
  const std::lock_guard lock(mutex_);
  Region* region = current_;
  if (region == nullptr || region->size_bytes - region->used_bytes < needed) {
    const std::size_t size = std::max(kRegion, round_up(needed + kAlignment, kHugePage));
    std::byte* const memory = map_huge(size);
    if (memory == nullptr) return nullptr;
    region = reinterpret_cast<Region*>(memory);
    *region = {.size_bytes = size, .used_bytes = kAlignment, .num_pieces = 0, .is_block = false};
    mapped_bytes_ += size;
    // The fuller of the two regions is left behind; it lives on by its pieces.
    const std::size_t left = size - region->used_bytes - needed;
    if (current_ == nullptr || current_->size_bytes - current_->used_bytes < left) {
      if (current_ != nullptr && current_->num_pieces == 0) {
        mapped_bytes_ -= current_->size_bytes;
        munmap(current_, current_->size_bytes);
      }
      current_ = region;
    }
  }
  std::byte* const piece = reinterpret_cast<std::byte*>(region) + region->used_bytes + kAlignment;
  *reinterpret_cast<Header*>(piece - kAlignment) = {.start = nullptr, .region = region};
  region->used_bytes += needed;
  ++region->num_pieces;
  return piece;
}

void HostAllocator::free(void* memory) {
  if (memory == nullptr) return;
  const Header header = *reinterpret_cast<Header*>(static_cast<std::byte*>(memory) - kAlignment);
  if (header.region == nullptr) {
    std::free(header.start);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (header.region->is_block) {
    free_block(header.region);
    return;
  }
  if (--header.region->num_pieces > 0) return;
  if (header.region == current_) current_ = nullptr;
  mapped_bytes_ -= header.region->size_bytes;
  munmap(header.region, header.region->size_bytes);
}

/// Keeps the block and drops the oldest ones when they are too many.
void HostAllocator::free_block(Region* block) {
  kept_.push_back(block);
  kept_bytes_ += block->size_bytes;
  while (kept_bytes_ > kMaxKept) {
    Region* const oldest = kept_.front();
    kept_.erase(kept_.begin());
    kept_bytes_ -= oldest->size_bytes;
    mapped_bytes_ -= oldest->size_bytes;
    munmap(oldest, oldest->size_bytes);
  }
}

std::size_t HostAllocator::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  return mapped_bytes_;
}

}  // namespace genai::ort
