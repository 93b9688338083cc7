#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace ort_abi {
struct Allocator;
struct MemoryInfo;
}  // namespace ort_abi

namespace genai::ort {

/// Host memory for ONNX Runtime sessions, on huge pages where the system has them: reading weights is most of the time
/// of a decode step, and with 4 KiB pages a good part of that is address translation. Thread-safe.
///
/// Small pieces come from malloc. Larger ones are cut, best fit first, from regions that lie on huge pages, so that
/// many weights share a huge page; neighbours that are free are joined. A piece larger than a region has one of its
/// own. Regions that are free are kept up to kMaxKeptBytes, then given back to the system.
///
///     region   | header | piece | header | free ......... | header | piece |
class HostAllocator {
 public:
  /// `memory_info` (host memory) must outlive the allocator.
  explicit HostAllocator(const ort_abi::MemoryInfo* memory_info);
  /// Requires: all pieces are freed.
  ~HostAllocator();
  HostAllocator(const HostAllocator&) = delete;
  HostAllocator& operator=(const HostAllocator&) = delete;

  /// What ONNX Runtime is given. Lives as long as this object.
  ort_abi::Allocator* handle();

  /// Memory aligned to kAlignment, not initialised; nullptr when `size_bytes` is 0 or there is no memory.
  /// Cost: O(log(free pieces)).
  void* alloc(std::size_t size_bytes);
  /// Takes what alloc() gave, and nullptr.
  void free(void* memory);

  /// Gives all free regions back to the system.
  void trim();

  /// Bytes taken from the system for regions, kept ones included.
  std::size_t mapped_bytes() const;
  /// Bytes of the large pieces that are in use.
  std::size_t used_bytes() const;

  static constexpr std::size_t kAlignment = 64;
  /// Pieces from this size on lie in regions.
  static constexpr std::size_t kLargeBytes = std::size_t{32} << 10;
  static constexpr std::size_t kRegionBytes = std::size_t{32} << 20;
  static constexpr std::size_t kMaxKeptBytes = std::size_t{256} << 20;

 private:
  struct Chunk;
  struct Table;
  using FreeSet = std::set<std::pair<std::size_t, Chunk*>>;  ///< by size, then address

  static void* alloc_small(std::size_t size_bytes);
  Chunk* find_free(std::size_t chunk_bytes);
  Chunk* map_region(std::size_t chunk_bytes);
  void split(Chunk* chunk, std::size_t chunk_bytes);
  void join_next(Chunk* chunk);
  void put_free(Chunk* chunk);
  void take_free(Chunk* chunk);
  void drop_kept_regions(std::size_t limit_bytes);

  const ort_abi::MemoryInfo* memory_info_;
  std::unique_ptr<Table> table_;
  mutable std::mutex mutex_;
  FreeSet free_;                  ///< parts of shared regions, guarded by mutex_
  FreeSet free_whole_;            ///< regions that are free, guarded by mutex_
  std::size_t whole_bytes_ = 0;   ///< sum of free_whole_, guarded by mutex_
  std::size_t mapped_bytes_ = 0;  ///< guarded by mutex_
  std::size_t used_bytes_ = 0;    ///< guarded by mutex_
};

}  // namespace genai::ort
