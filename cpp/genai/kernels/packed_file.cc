#include "genai/kernels/packed_file.h"

#include "genai/base/checksum.h"
#include "genai/base/huge_pages.h"
#include "genai/kernels/packed_folder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <type_traits>
#include <utility>

namespace genai::kernels {
namespace {

// Keys are compared and hashed as bytes, and entries lie in files as they lie in memory.
static_assert(std::has_unique_object_representations_v<PackedEntry> && std::is_trivially_copyable_v<PackedEntry>);

constexpr std::uint64_t kMagic = 0x31'6B'63'61'70'67'6E'6F;  // "ongpack1" on a little-endian machine
/// Before the first image: whole pages, so that images start at one.
constexpr std::size_t kHeaderBytes = 4096;
constexpr std::size_t kAlignment = 64;
/// Of a segment, unless an image is larger.
constexpr std::size_t kSegmentBytes = std::size_t{16} << 20;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 62;

/// The first bytes of a file.
struct Header {
  std::uint64_t magic = kMagic;
  std::uint64_t version = kPackedVersion;
  std::uint64_t entry_bytes = sizeof(PackedEntry);
  std::uint64_t num_entries = 0;
  std::uint64_t table_offset = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t table_checksum = 0;
  std::uint64_t checksum = 0;  ///< of the fields before

  std::uint64_t sum() const { return genai::checksum(std::as_bytes(std::span(this, 1)).first(sizeof(*this) - 8)); }
};
static_assert(std::has_unique_object_representations_v<Header> && sizeof(Header) <= kHeaderBytes);

std::size_t rounded_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

std::string cause_of(int error) {
  return std::generic_category().message(error);
}

/// Closes a descriptor at the end of a block.
struct Closer {
  int descriptor;
  explicit Closer(int given) : descriptor(given) {}
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;
  ~Closer() { close(descriptor); }
};

}  // namespace

std::shared_ptr<const PackedFile> PackedFile::open(const std::string& path, std::string& why) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) {
    why = cause_of(errno);
    return nullptr;
  }
  const Closer closer(descriptor);
  struct stat facts{};
  if (fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_uid != geteuid()) {
    why = "it is not a file of this user";
    return nullptr;
  }
  if (facts.st_size < static_cast<off_t>(kHeaderBytes)) {
    why = "it was cut";
    return nullptr;
  }
  const auto size = static_cast<std::size_t>(facts.st_size);
  std::shared_ptr<PackedFile> file;
  try {
    file = std::make_shared<PackedFile>(descriptor, size);
    why = file->read_table(size);
  } catch (const std::bad_alloc&) {
    why = "there is no memory to map it";
  }
  if (!why.empty()) return nullptr;
  futimens(descriptor, nullptr);
  return file;
}

std::string PackedFile::read_table(std::size_t size_bytes) {
  Header header;
  std::memcpy(&header, mapping_.data(), sizeof(header));
  if (header.magic != kMagic) return "it is no file of packed weights";
  if (header.version != kPackedVersion) return "it is of version " + std::to_string(header.version);
  if (header.checksum != header.sum() || header.entry_bytes != sizeof(PackedEntry)) return "its header is damaged";
  if (header.file_bytes != size_bytes) return "it was cut";
  const std::uint64_t table_bytes = header.num_entries * sizeof(PackedEntry);
  if (header.num_entries > size_bytes || header.table_offset > size_bytes ||
      table_bytes != size_bytes - header.table_offset) {
    return "its header is damaged";
  }
  const std::span<const std::byte> whole(mapping_.data(), size_bytes);
  const std::span<const std::byte> table = whole.subspan(header.table_offset);
  if (checksum(table) != header.table_checksum) return "its table is damaged";
  entries_.resize(header.num_entries);
  std::memcpy(entries_.data(), table.data(), table.size());
  for (const PackedEntry& entry : entries_) {
    if (entry.offset % kAlignment != 0 || entry.offset < kHeaderBytes || entry.offset > header.table_offset ||
        entry.size_bytes > header.table_offset - entry.offset) {
      return "its table is damaged";
    }
    if (checksum(whole.subspan(entry.offset, entry.size_bytes)) != entry.checksum) return "its weights are damaged";
    counted_.add(entry.size_bytes);
  }
  return {};
}

const PackedEntry* PackedFile::find(const PackedKey& key) const {
  const auto found = std::ranges::lower_bound(entries_, key, {}, &PackedEntry::key);
  return found == entries_.end() || found->key != key ? nullptr : &*found;
}

std::unique_ptr<PackedFileWriter> PackedFileWriter::create(const std::string& path, const Limits& limits,
                                                           std::string& why) {
  std::string partial = path + ".XXXXXX" + kPartialSuffix;
  const auto suffix = static_cast<int>(std::strlen(kPartialSuffix));
  const int descriptor = mkostemps(partial.data(), suffix, O_CLOEXEC);  // for this user only
  if (descriptor < 0) {
    why = cause_of(errno);
    return nullptr;
  }
  hold_partial(descriptor);
  auto writer = std::make_unique<PackedFileWriter>(descriptor, std::move(partial), path, limits.max_bytes);
  struct statvfs disk{};
  if (fstatvfs(descriptor, &disk) == 0 &&
      disk.f_bavail * disk.f_frsize < static_cast<std::uint64_t>(limits.free_bytes_needed)) {
    why = "the disk is almost full";
    return nullptr;
  }
  return writer;
}

PackedFileWriter::PackedFileWriter(int descriptor, std::string partial, std::string path, std::int64_t max_bytes)
    : descriptor_(descriptor), partial_(std::move(partial)), path_(std::move(path)), max_bytes_(max_bytes) {}

PackedFileWriter::~PackedFileWriter() {
  abandon();
  close(descriptor_);
}

/// Memory of this process that becomes the file's.
class PackedFileWriter::Segment {
 public:
  /// Zeros; `size_bytes`: a multiple of kHugePage. Throws std::bad_alloc.
  explicit Segment(std::size_t size_bytes) : start_(map_huge(size_bytes)), size_bytes_(size_bytes) {
    if (start_ == nullptr) throw std::bad_alloc();
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment() { munmap(start_, size_bytes_); }

  std::byte* start() const { return start_; }
  std::size_t size_bytes() const { return size_bytes_; }
  void count(std::size_t size_bytes) { counted_.add(size_bytes); }

  /// Takes the pages of a file that hold the same bytes, unless they are slower. Whoever reads meanwhile sees one or
  /// the other. Throws std::bad_alloc.
  void become(int descriptor, std::uint64_t offset, std::size_t size_bytes) {
    const FileMapping trial(descriptor, static_cast<std::int64_t>(offset), size_bytes);
    for (std::size_t at = 0; at < size_bytes; at += kHugePage) {
      if (*static_cast<const volatile std::byte*>(trial.data() + at) != start_[at]) return;
    }
    if (!trial.is_fast()) return;
    constexpr int kFlags = MAP_SHARED | MAP_FIXED;
    if (mmap(start_, size_bytes, PROT_READ, kFlags, descriptor, static_cast<off_t>(offset)) == MAP_FAILED) return;
#if defined(MADV_HUGEPAGE)
    madvise(start_, size_bytes, MADV_HUGEPAGE);
#endif
    file_bytes_ = size_bytes;
  }

  /// Gives the file's pages back, whose room on the disk stays taken while they are mapped. Whoever reads meanwhile
  /// sees the same bytes. Does nothing where memory is short.
  void leave_file() {
    if (file_bytes_ == 0) return;
    const std::size_t size = rounded_up(file_bytes_, kHugePage);
    std::byte* const own = map_huge(size);
    if (own == nullptr) return;
    std::memcpy(own, start_, file_bytes_);
    if (mremap(own, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, start_) == MAP_FAILED) {
      munmap(own, size);
      return;
    }
    file_bytes_ = 0;
  }

 private:
  std::byte* start_;
  std::size_t size_bytes_;
  std::size_t file_bytes_ = 0;  ///< from start_ on, that are pages of the file
  CountedWeights counted_;
};

std::shared_ptr<const std::byte> PackedFileWriter::add(const PackedKey& key, std::size_t size_bytes,
                                                       bool has_zero_points,
                                                       const std::function<void(std::byte*)>& pack) {
  const std::size_t size = rounded_up(size_bytes, kAlignment);
  if (!failure_.empty()) return nullptr;
  if ((!segment_ || size > segment_->size_bytes() - used_) && !begin_segment(size)) return nullptr;
  const std::size_t at = used_;
  pack(segment_->start() + at);
  used_ += size;
  segment_->count(size);
  entries_.push_back({key, segment_offset_ + at, size_bytes, has_zero_points ? 1U : 0U, 0});
  images_.emplace_back(segment_, segment_->start() + at);
  return images_.back();
}

bool PackedFileWriter::begin_segment(std::size_t least_bytes) {
  if (!end_segment()) return false;
  const std::size_t head = segment_ ? 0 : kHeaderBytes;
  const std::uint64_t offset = rounded_up(segment_offset_ + used_, kHugePage);
  const std::size_t size = rounded_up(std::max(kSegmentBytes, least_bytes + head), kHugePage);
  if (offset + head + least_bytes > static_cast<std::uint64_t>(max_bytes_)) {
    fail("it would have more than " + std::to_string(max_bytes_) + " bytes");
    return false;
  }
  segment_ = segments_.emplace_back(std::make_shared<Segment>(size));
  segment_offset_ = offset;
  used_ = head;
  return true;
}

bool PackedFileWriter::end_segment() {
  if (!segment_) return true;
  if (!write(segment_offset_, {segment_->start(), used_})) return false;
  segment_->become(descriptor_, segment_offset_, used_);
  return true;
}

bool PackedFileWriter::finish() {
  if (!failure_.empty() || !end_segment()) return false;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].checksum = checksum({images_[i].get(), entries_[i].size_bytes});
  }
  std::ranges::sort(entries_, {}, &PackedEntry::key);
  const std::span<const std::byte> table = std::as_bytes(std::span(entries_));
  Header header;
  header.num_entries = entries_.size();
  header.table_offset = segment_offset_ + used_;
  header.file_bytes = header.table_offset + table.size();
  header.table_checksum = checksum(table);
  header.checksum = header.sum();
  if (!write(header.table_offset, table) || !write(0, std::as_bytes(std::span(&header, 1)))) return false;
  if (rename(partial_.c_str(), path_.c_str()) != 0) {
    fail(cause_of(errno));
    return false;
  }
  partial_.clear();
  return true;
}

bool PackedFileWriter::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  const std::uint64_t end = offset + bytes.size();
  struct rlimit limit{};
  // Beyond the limit the system would send a signal that ends the process.
  if (end > kMaxFileBytes || (getrlimit(RLIMIT_FSIZE, &limit) == 0 && end > limit.rlim_cur)) {
    fail(cause_of(EFBIG));
    return false;
  }
  while (!bytes.empty()) {
    const ssize_t done = pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      fail(cause_of(done == 0 ? ENOSPC : errno));
      return false;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return true;
}

void PackedFileWriter::fail(const std::string& why) {
  failure_ = why;
  abandon();
}

void PackedFileWriter::abandon() {
  if (partial_.empty()) return;
  unlink(partial_.c_str());
  partial_.clear();
  for (const std::shared_ptr<Segment>& segment : segments_) segment->leave_file();
}

}  // namespace genai::kernels
