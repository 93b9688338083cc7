#include "genai/kernels/packed_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <vector>

namespace genai::kernels {
namespace fs = std::filesystem;

namespace {

/// Whether files are kept by another machine or process (magic numbers of statfs(2)).
bool is_remote(const std::string& folder) {
  struct statfs facts{};
  if (statfs(folder.c_str(), &facts) != 0) return false;
  switch (static_cast<std::uint32_t>(facts.f_type)) {
    case 0x6969:      // NFS
    case 0x517B:      // SMB
    case 0xFE534D42:  // SMB2
    case 0xFF534D42:  // CIFS
    case 0x65735546:  // FUSE
    case 0x01021997:  // 9P
    case 0x00C36400:  // Ceph
    case 0x0BD00BD0:  // Lustre
    case 0x5346414F:  // AFS
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string prepare_packed_folder(const std::string& folder) {
  std::error_code error;
  if (const fs::path parent = fs::path(folder).parent_path(); !parent.empty()) fs::create_directories(parent, error);
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) return std::generic_category().message(errno);
  struct stat facts{};
  if (lstat(folder.c_str(), &facts) != 0) return std::generic_category().message(errno);
  if (!S_ISDIR(facts.st_mode)) return "it is not a folder";
  if (facts.st_uid != geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others may write to it";
  if (is_remote(folder)) return "it is on a network or FUSE file system";
  return {};
}

void hold_partial(int descriptor) {
  flock(descriptor, LOCK_EX | LOCK_NB);
}

void remove_abandoned(const std::string& folder) {
  /// Younger ones may have a process that has not come to hold them.
  constexpr std::chrono::seconds kYoung{10};
  /// Longer than any model takes to load, for file systems without locks.
  constexpr std::chrono::hours kOld{24};
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() != kPartialSuffix) continue;
    const int descriptor = open(at->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    std::error_code gone;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(at->path(), gone);
    const bool is_held = flock(descriptor, LOCK_EX | LOCK_NB) != 0;
    if (!gone && age > (is_held ? std::chrono::seconds(kOld) : kYoung)) fs::remove(at->path(), gone);
    close(descriptor);
  }
}

void make_room(const std::string& folder, std::int64_t max_bytes) {
  struct File {
    fs::path path;
    std::int64_t size_bytes;
    fs::file_time_type used;
  };
  std::vector<File> files;
  std::int64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    // Another process may remove a file meanwhile: then it takes no room.
    std::error_code gone;
    const auto used = fs::last_write_time(at->path(), gone);
    const auto size = static_cast<std::int64_t>(gone ? 0 : fs::file_size(at->path(), gone));
    if (gone) continue;
    if (at->path().extension() != kPackedSuffix) continue;
    files.push_back({at->path(), size, used});
    total += size;
  }
  std::ranges::sort(files, {}, &File::used);
  for (const File& file : files) {
    if (total <= max_bytes) return;
    fs::remove(file.path, error);
    total -= file.size_bytes;
  }
}

}  // namespace genai::kernels
