#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace genai {

/// What a file was when it was looked at: equal for as long as it was neither written to nor replaced. All zero: none.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t modified_ns = 0;  ///< since 1970; a program can set it to anything
  std::int64_t changed_ns = 0;   ///< the same, of any change; the system sets it

  friend auto operator<=>(const FileIdentity&, const FileIdentity&) = default;
};

/// Of a regular file; nullopt for others. Thread-safe.
std::optional<FileIdentity> file_identity(int descriptor);

/// Whether the file was last changed so long before `now_ns` (since 1970) that a write from then on gives it another
/// time. File systems count in steps of up to 10 ms, and some in whole seconds.
bool is_settled(const FileIdentity& file, std::int64_t now_ns);

/// Nanoseconds since 1970, as file systems count.
std::int64_t file_clock_ns();

/// Finds the file that memory is mapped from. Reads the kernel's table once: what was mapped then must stay mapped as
/// long as the object is used; what was mapped later is found, too. One thread. Linux only: elsewhere finds nothing.
class MappedFiles {
 public:
  struct Place {
    FileIdentity file;
    std::uint64_t offset = 0;

    friend auto operator<=>(const Place&, const Place&) = default;
  };

  /// Where [data, data + size_bytes) lies; nullopt when it is not in one mapping of one file, or when the path of that
  /// file leads to another one by now. Two places are equal only for the same byte of the same content.
  std::optional<Place> find(const void* data, std::size_t size_bytes);

 private:
  struct Region {
    std::uintptr_t start = 0;
    std::uintptr_t end = 0;
    std::uint64_t offset = 0;
    std::string file;  ///< device and inode, as the kernel writes them; empty: none
    std::string path;
  };
  using Regions = std::vector<Region>;  ///< by address

  static Regions read();
  static const Region* region_of(const Regions& regions, const void* data, std::size_t size_bytes);
  static std::optional<FileIdentity> identity_of(const Region& region);

  Regions regions_;
  std::map<std::pair<std::string, std::string>, std::optional<FileIdentity>> identities_;  ///< by file and path
};

}  // namespace genai
