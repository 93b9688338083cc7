#include "genai/base/mapped_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

namespace genai {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
/// Longer than any step of a clock that counts parts of seconds.
constexpr std::int64_t kFineStepNs = 50'000'000;
/// The same for one that counts in seconds, or in two of them.
constexpr std::int64_t kCoarseStepNs = 2 * kSecondNs + kFineStepNs;

std::int64_t nanoseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * kSecondNs + time.tv_nsec;
}

/// Closes a file at the end of a block.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

std::optional<FileIdentity> file_identity(int descriptor) {
  struct stat facts{};
  if (fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  FileIdentity identity;
  identity.device = static_cast<std::uint64_t>(facts.st_dev);
  identity.inode = static_cast<std::uint64_t>(facts.st_ino);
  identity.size_bytes = static_cast<std::uint64_t>(facts.st_size);
#if defined(__APPLE__)
  identity.modified_ns = nanoseconds(facts.st_mtimespec);
  identity.changed_ns = nanoseconds(facts.st_ctimespec);
#else
  identity.modified_ns = nanoseconds(facts.st_mtim);
  identity.changed_ns = nanoseconds(facts.st_ctim);
#endif
  return identity;
}

bool is_settled(const FileIdentity& file, std::int64_t now_ns) {
  const bool coarse = file.changed_ns % kSecondNs == 0;
  return now_ns - file.changed_ns > (coarse ? kCoarseStepNs : kFineStepNs);
}

std::int64_t file_clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now);
}

std::optional<MappedFiles::Place> MappedFiles::find(const void* data, std::size_t size_bytes) {
  const Region* region = region_of(regions_, data, size_bytes);
  if (region == nullptr) {
    regions_ = read();
    region = region_of(regions_, data, size_bytes);
  }
  if (region == nullptr || region->file.empty()) return std::nullopt;
  const auto [known, is_new] = identities_.try_emplace({region->file, region->path});
  if (is_new) known->second = identity_of(*region);
  if (!known->second) return std::nullopt;
  return Place{*known->second, region->offset + (reinterpret_cast<std::uintptr_t>(data) - region->start)};
}

MappedFiles::Regions MappedFiles::read() {
  Regions regions;
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    Region region;
    char* rest = nullptr;
    region.start = std::strtoull(line.c_str(), &rest, 16);
    if (*rest != '-') continue;
    region.end = std::strtoull(rest + 1, &rest, 16);
    if (const std::size_t slash = line.find('/'); slash != std::string::npos) {
      std::istringstream fields(rest);
      std::string permissions;
      std::string device;
      std::uint64_t inode = 0;
      fields >> std::hex >> permissions >> region.offset >> device >> std::dec >> inode;
      if (fields && inode != 0) {
        region.file = device + ":" + std::to_string(inode);
        region.path = line.substr(slash);
      }
    }
    regions.push_back(std::move(region));
  }
  return regions;
}

const MappedFiles::Region* MappedFiles::region_of(const Regions& regions, const void* data, std::size_t size_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto behind = std::upper_bound(regions.begin(), regions.end(), address,
                                       [](std::uintptr_t at, const Region& region) { return at < region.start; });
  if (behind == regions.begin()) return nullptr;
  const Region& region = *std::prev(behind);
  return address < region.end && size_bytes <= region.end - address ? &region : nullptr;
}

std::optional<FileIdentity> MappedFiles::identity_of(const Region& region) {
  const OpenFile file(region.path);
  const std::optional<FileIdentity> identity = file_identity(file.descriptor());
  if (!identity || identity->size_bytes == 0) return std::nullopt;
  // Some file systems show another device in the table than elsewhere, so the table is asked about this file, too.
  void* const page = mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (page == MAP_FAILED) return std::nullopt;
  const Regions now = read();
  const Region* const found = region_of(now, page, 1);
  const bool same = found != nullptr && found->file == region.file;
  munmap(page, 1);
  return same ? identity : std::nullopt;
}

}  // namespace genai
