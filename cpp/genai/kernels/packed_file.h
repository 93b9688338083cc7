#pragma once

#include "genai/base/file_mapping.h"
#include "genai/base/mapped_files.h"
#include "genai/kernels/nbits_weights.h"
#include "genai/kernels/weight_memory.h"

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Files of packed weights, which processes map and so share.
namespace genai::kernels {

/// Of images and of the file around them; another version is packed anew.
inline constexpr std::uint64_t kPackedVersion = 2;

/// Where some of a matrix's constants lie: a place of a file, or the checksum of bytes that are in no file.
struct PackedPiece {
  FileIdentity file;
  std::uint64_t place = 0;
  /// Of codes, a checksum of some of them: images of file systems have times that say nothing, and inodes that come
  /// again.
  std::uint64_t sample = 0;

  friend auto operator<=>(const PackedPiece&, const PackedPiece&) = default;
};

/// The constants of one matrix; of none when there are no scales.
struct PackedConstants {
  PackedPiece codes;
  PackedPiece scales;
  PackedPiece zero_points;
  std::int64_t first = 0;
  std::int64_t num_scales = 0;
  std::int64_t num_zero_points = 0;

  friend auto operator<=>(const PackedConstants&, const PackedConstants&) = default;
};

/// All that an image depends on.
struct PackedKey {
  std::array<PackedConstants, kMatricesInTurn> matrices;
  std::int64_t depth = 0;
  std::int64_t columns = 0;
  std::int64_t bits = 0;
  std::int64_t block = 0;
  std::int64_t layout = 0;
  std::int64_t is_signed = 0;
  std::int64_t width = 0;
  std::int64_t scale_bits = 0;
  std::int64_t exact = 0;

  friend auto operator<=>(const PackedKey&, const PackedKey&) = default;
};

/// A line of a file's table, as it lies in the file.
struct PackedEntry {
  PackedKey key;
  std::uint64_t offset = 0;  ///< of the image, a multiple of 64
  std::uint64_t size_bytes = 0;
  std::uint64_t has_zero_points = 0;
  std::uint64_t checksum = 0;  ///< of the image
};

/// A whole file, mapped and checked. const methods are thread-safe.
class PackedFile {
 public:
  /// nullptr when there is no file, or when it is not ours, of another version, or damaged; `why` says which of them.
  /// Notes in the file that it was used. Cost: reads the whole file once.
  static std::shared_ptr<const PackedFile> open(const std::string& path, std::string& why);

  /// Use open(). Throws std::bad_alloc.
  PackedFile(int descriptor, std::size_t size_bytes) : mapping_(descriptor, 0, size_bytes) {}

  const PackedEntry* find(const PackedKey& key) const;
  const std::byte* image(const PackedEntry& entry) const { return mapping_.data() + entry.offset; }
  /// See FileMapping::is_fast().
  bool is_fast() const { return mapping_.is_fast(); }
  /// Lets what was read leave physical memory; it is read again when it is needed.
  void release_pages() const { mapping_.release_pages(); }

 private:
  /// Empty when all is right.
  std::string read_table(std::size_t size_bytes);

  FileMapping mapping_;
  std::vector<PackedEntry> entries_;  ///< by key
  CountedWeights counted_;
};

/// Writes a file beside its final place; it gets there when it is whole. Images are made in memory of this process, and
/// a few MB later that memory becomes the file's, so that they are in memory once. One thread.
class PackedFileWriter {
 public:
  struct Limits {
    std::int64_t max_bytes = 0;          ///< of the file
    std::int64_t free_bytes_needed = 0;  ///< on the disk, before it is begun
  };
  /// nullptr when the folder of `path` cannot be written to or its disk is too full; `why` says which of them.
  static std::unique_ptr<PackedFileWriter> create(const std::string& path, const Limits& limits, std::string& why);

  /// Use create(). Takes over the file `partial`.
  PackedFileWriter(int descriptor, std::string partial, std::string path, std::int64_t max_bytes);
  PackedFileWriter(const PackedFileWriter&) = delete;
  PackedFileWriter& operator=(const PackedFileWriter&) = delete;
  /// Removes the file unless it was finished. Images live on.
  ~PackedFileWriter();

  /// An image that `pack` makes of zeros. nullptr when the file can take no more: failure() says why, and finish() will
  /// do nothing.
  std::shared_ptr<const std::byte> add(const PackedKey& key, std::size_t size_bytes, bool has_zero_points,
                                       const std::function<void(std::byte*)>& pack);
  /// Writes what is still in memory, adds the table and gives the file its name. false when that failed; failure() says
  /// why. Images live on in any case.
  bool finish();

  std::int64_t size_bytes() const { return static_cast<std::int64_t>(segment_offset_ + used_); }
  /// Empty as long as all went well.
  const std::string& failure() const { return failure_; }

 private:
  /// A part of the file.
  class Segment;

  bool begin_segment(std::size_t least_bytes);
  bool end_segment();
  bool write(std::uint64_t offset, std::span<const std::byte> bytes);
  void fail(const std::string& why);
  /// Removes the unfinished file, and takes the images into memory.
  void abandon();

  int descriptor_;
  std::string partial_;  ///< path of the unfinished file; empty once it is finished
  std::string path_;
  std::int64_t max_bytes_;
  std::string failure_;
  std::vector<PackedEntry> entries_;
  std::vector<std::shared_ptr<const std::byte>> images_;  ///< of entries_
  std::vector<std::shared_ptr<Segment>> segments_;        ///< shared with their images
  std::shared_ptr<Segment> segment_;                      ///< the last one
  std::uint64_t segment_offset_ = 0;
  std::size_t used_ = 0;  ///< of segment_
};

}  // namespace genai::kernels
