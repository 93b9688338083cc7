#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace ort_abi {
struct Allocator;
struct AllocatorTable;
struct MemoryInfo;
}  // namespace ort_abi

namespace genai::ort {

/// Host memory for ONNX Runtime sessions, on huge pages where the system has them: reading weights is most of the time of
/// a decode step, and with 4 KiB pages a good part of it is address translation. Thread-safe.
///
/// Memory that stays (weights, by reserve()) is cut from regions one after the other, so that small weights share huge
/// pages too; a region goes back to the system when all its pieces are freed. Working memory (by alloc()) comes from
/// malloc when it is small and from kept large blocks otherwise.
class HostAllocator {
 public:
  /// `memory_info` (host memory) must outlive the allocator.
  explicit HostAllocator(const ort_abi::MemoryInfo* memory_info);
  ~HostAllocator();
  HostAllocator(const HostAllocator&) = delete;
  HostAllocator& operator=(const HostAllocator&) = delete;

  /// What ONNX Runtime is given. Lives as long as this object.
  ort_abi::Allocator* handle();

  /// Memory aligned to kAlignment; nullptr when there is none. free() takes what either of them gave, and nullptr.
  void* alloc(std::size_t size_bytes);
  void* reserve(std::size_t size_bytes);
  void free(void* memory);

  /// Bytes taken from the system for regions and large blocks, kept ones included. For tests.
  std::size_t mapped_bytes() const;

  static constexpr std::size_t kAlignment = 64;

 private:
  struct Header;
  struct Region;
  struct Table;

  void* alloc_small(std::size_t size_bytes);
  void* alloc_block(std::size_t size_bytes);
  void free_block(Region* block);

  const ort_abi::MemoryInfo* memory_info_;
  std::unique_ptr<Table> table_;
  mutable std::mutex mutex_;
  std::size_t mapped_bytes_ = 0;          ///< guarded by mutex_
  std::size_t kept_bytes_ = 0;            ///< of kept_, guarded by mutex_
  std::vector<Region*> kept_;             ///< free large blocks, oldest first, guarded by mutex_
  Region* current_ = nullptr;             ///< region that reserve() cuts from, guarded by mutex_
};

}  // namespace genai::ort
