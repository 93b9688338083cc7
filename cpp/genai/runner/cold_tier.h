#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace genai::runner {

/// Bytes outside of memory. One thread.
class ColdFile {
 public:
  virtual ~ColdFile() = default;
  /// Both throw kBackend with the place and the cause unless all bytes were written or read.
  virtual void write(std::int64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void read(std::int64_t offset, std::span<std::byte> bytes) = 0;
  /// Bytes that may still be written.
  virtual std::int64_t free_bytes() const = 0;
  virtual const std::string& where() const = 0;  ///< for errors
};

/// Opens a file in `folder` that has no name there: nobody else can meet it, and it is gone when the process is.
/// Throws kInvalidArgument when the folder does not exist or cannot be written to.
std::unique_ptr<ColdFile> open_cold_file(const std::string& folder);

/// The KV blocks that lie in a file, with a checksum each. One thread.
class ColdTier {
 public:
  /// No blocks.
  ColdTier() = default;
  /// At most `max_bytes`, and what the file can take. Throws kInvalidArgument when max_bytes holds no block,
  /// kResourceExhausted when the file can take none.
  ColdTier(std::unique_ptr<ColdFile> file, std::int64_t block_bytes, std::int64_t max_bytes);

  std::int64_t num_blocks() const { return num_blocks_; }

  /// Fills a slot. Throws kBackend, and the slot is empty then. Requires: block_bytes bytes.
  void write(std::int32_t slot, std::span<const std::byte> bytes);
  /// Throws kBackend when the slot is empty, cannot be read, or does not hold what was written.
  void read(std::int32_t slot, std::span<std::byte> bytes) const;
  /// Makes a slot empty.
  void clear(std::int32_t slot);

 private:
  struct Slot {
    bool full = false;
    std::uint64_t checksum = 0;
  };
  std::int64_t offset(std::int32_t slot) const { return slot * stride_; }

  std::unique_ptr<ColdFile> file_;
  std::int64_t stride_ = 0;  ///< bytes from one slot to the next
  std::int64_t num_blocks_ = 0;
  std::vector<Slot> slots_;  ///< up to the highest one that was ever filled
};

}  // namespace genai::runner
