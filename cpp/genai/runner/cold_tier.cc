#include "genai/runner/cold_tier.h"

#include "genai/base/checksum.h"
#include "genai/base/error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <utility>

namespace genai::runner {
namespace {

/// Slots begin at multiples of this, so that no two share a page of the file.
constexpr std::int64_t kAlignment = 4096;

std::string cause_of(int error) {
  return std::generic_category().message(error);
}

/// A file that was unlinked before its first use.
class UnnamedFile : public ColdFile {
 public:
  explicit UnnamedFile(const std::string& folder) : where_("the cold KV tier's file in " + folder) {
    struct stat facts{};
    if (stat(folder.c_str(), &facts) != 0) refuse(folder, cause_of(errno));
    if (!S_ISDIR(facts.st_mode)) refuse(folder, "it is not a folder");
#ifdef O_TMPFILE
    descriptor_ = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
#endif
    if (descriptor_ < 0) open_and_unlink(folder);
  }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  ~UnnamedFile() override { close(descriptor_); }

  void write(std::int64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t done = pwrite(descriptor_, bytes.data(), bytes.size(), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) {
        fail("write", bytes.size(), offset, done == 0 ? ENOSPC : errno);
      }
      bytes = bytes.subspan(static_cast<std::size_t>(done));
      offset += done;
    }
  }

  void read(std::int64_t offset, std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t done = pread(descriptor_, bytes.data(), bytes.size(), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail("read", bytes.size(), offset, errno);
      if (done == 0) throw Error(ErrorCode::kBackend, where_ + " ends at " + std::to_string(offset) + ": it was cut");
      bytes = bytes.subspan(static_cast<std::size_t>(done));
      offset += done;
    }
  }

  std::int64_t free_bytes() const override {
    struct statvfs facts{};
    if (fstatvfs(descriptor_, &facts) != 0) return std::numeric_limits<std::int64_t>::max();
    return static_cast<std::int64_t>(facts.f_bavail * facts.f_frsize);
  }

  const std::string& where() const override { return where_; }

 private:
  /// For file systems without files that never had a name.
  void open_and_unlink(const std::string& folder) {
    std::string path = folder + "/genai-kv-XXXXXX";
    descriptor_ = mkostemp(path.data(), O_CLOEXEC);
    if (descriptor_ < 0) refuse(folder, cause_of(errno));
    unlink(path.c_str());
  }

  [[noreturn]] static void refuse(const std::string& folder, const std::string& cause) {
    throw Error(ErrorCode::kInvalidArgument, "no file for the cold KV tier can be made in \"" + folder +
                                                 "\": " + cause + ". Name an existing folder that can be written to.");
  }

  [[noreturn]] void fail(const char* verb, std::size_t size, std::int64_t offset, int error) const {
    throw Error(ErrorCode::kBackend, "cannot " + std::string(verb) + " " + std::to_string(size) + " bytes at " +
                                         std::to_string(offset) + " of " + where_ + ": " + cause_of(error));
  }

  std::string where_;
  int descriptor_ = -1;
};

}  // namespace

std::unique_ptr<ColdFile> open_cold_file(const std::string& folder) {
  return std::make_unique<UnnamedFile>(folder);
}

ColdTier::ColdTier(std::unique_ptr<ColdFile> file, std::int64_t block_bytes, std::int64_t max_bytes)
    : file_(std::move(file)), stride_((block_bytes + kAlignment - 1) / kAlignment * kAlignment) {
  if (max_bytes < stride_) {
    throw Error(ErrorCode::kInvalidArgument, "a cold KV tier of " + std::to_string(max_bytes) +
                                                 " bytes does not hold one block of this model, " +
                                                 std::to_string(stride_) + " bytes. Allow more disk space.");
  }
  const std::int64_t free_bytes = file_->free_bytes();
  if (free_bytes < stride_) {
    throw Error(ErrorCode::kResourceExhausted,
                file_->where() + " has " + std::to_string(free_bytes) + " bytes left on its disk; one block takes " +
                    std::to_string(stride_) + " bytes. Free disk space or name another folder.");
  }
  num_blocks_ =
      std::min<std::int64_t>(std::min(max_bytes, free_bytes) / stride_, std::numeric_limits<std::int32_t>::max());
}

void ColdTier::write(std::int32_t slot, std::span<const std::byte> bytes) {
  check(slot >= 0 && slot < num_blocks_, "a KV block outside of the cold tier");
  const auto index = static_cast<std::size_t>(slot);
  if (index >= slots_.size()) slots_.resize(index + 1);
  slots_[index].full = false;
  file_->write(offset(slot), bytes);
  slots_[index] = {.full = true, .checksum = checksum(bytes)};
}

void ColdTier::read(std::int32_t slot, std::span<std::byte> bytes) const {
  check(slot >= 0 && slot < num_blocks_, "a KV block outside of the cold tier");
  const auto index = static_cast<std::size_t>(slot);
  if (index >= slots_.size() || !slots_[index].full) {
    throw Error(ErrorCode::kBackend, "block " + std::to_string(slot) + " of " + file_->where() + " is empty");
  }
  file_->read(offset(slot), bytes);
  if (checksum(bytes) != slots_[index].checksum) {
    throw Error(ErrorCode::kBackend, "block " + std::to_string(slot) + " of " + file_->where() +
                                         " is damaged: its checksum is not that of what was written");
  }
}

void ColdTier::clear(std::int32_t slot) {
  check(slot >= 0 && slot < num_blocks_, "a KV block outside of the cold tier");
  if (const auto index = static_cast<std::size_t>(slot); index < slots_.size()) slots_[index].full = false;
}

}  // namespace genai::runner
