#pragma once

#include <cstddef>
#include <cstdint>

namespace genai {

/// A file in memory, for reading; all processes that map it share its pages. Starts at a multiple of a huge
/// page, so that a file system with large pages can lend them. const methods are thread-safe.
class FileMapping {
 public:
  /// Maps a part of a file; `offset`: a multiple of kHugePage. Throws std::bad_alloc when the system refuses.
  FileMapping(int descriptor, std::int64_t offset, std::size_t size_bytes);
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  const std::byte* data() const { return start_; }

  /// Whether reading on is as fast as from memory of the process: the pages that were read by now are huge, or the
  /// system has no huge pages, or there are few. Small ones are read at half of the speed. About a millisecond.
  bool is_fast() const;

  /// Lets what was read leave physical memory; it is read again when it is needed.
  void release_pages() const;

 private:
  std::byte* start_ = nullptr;
  std::size_t size_bytes_;  ///< whole pages
};

}  // namespace genai
