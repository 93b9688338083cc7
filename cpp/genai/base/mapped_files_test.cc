#include "genai/base/mapped_files.h"

#include <doctest/doctest.h>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace genai {
namespace {

constexpr std::size_t kSize = 3 * 4096 + 5;

/// A file that goes with the object, mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) : path_(path) {
    std::ofstream(path) << std::string(kSize, 'a');
    const int descriptor = open(path.c_str(), O_RDONLY);
    REQUIRE(descriptor >= 0);
    identity_ = file_identity(descriptor);
    void* const mapped = mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE, descriptor, 0);
    REQUIRE(mapped != MAP_FAILED);
    close(descriptor);
    data_ = static_cast<const char*>(mapped);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    munmap(const_cast<char*>(data_), kSize);
    unlink(path_.c_str());
  }
  const char* data() const { return data_; }
  const std::optional<FileIdentity>& identity() const { return identity_; }

 private:
  std::string path_;
  const char* data_ = nullptr;
  std::optional<FileIdentity> identity_;
};

std::string temporary(const std::string& name) {
  return std::filesystem::temp_directory_path() / (name + "-" + std::to_string(getpid()));
}

TEST_CASE("MappedFiles_Mapped_GivesFileAndOffset") {
  const MappedFile file(temporary("genai mapped"));
  MappedFiles mapped;

  const auto place = mapped.find(file.data() + 5, kSize - 5);
  REQUIRE(place.has_value());
  REQUIRE(file.identity().has_value());
  CHECK(place->file == *file.identity());
  CHECK(place->offset == 5);
  CHECK(place->file.size_bytes == kSize);
  CHECK_FALSE(mapped.find(file.data(), kSize + 8192).has_value());
}

TEST_CASE("MappedFiles_MappedAfterTheFirstCall_IsFound") {
  MappedFiles mapped;
  const std::string memory(100, 'x');
  CHECK_FALSE(mapped.find(memory.data(), memory.size()).has_value());
  const MappedFile file(temporary("genai-later"));

  CHECK(mapped.find(file.data(), kSize).has_value());
}

TEST_CASE("MappedFiles_ReplacedOrRemoved_IsNotFound") {
  const std::string path = temporary("genai-replaced");
  const MappedFile file(path);
  std::ofstream(path + ".new") << std::string(kSize, 'b');
  REQUIRE(std::rename((path + ".new").c_str(), path.c_str()) == 0);
  CHECK_FALSE(MappedFiles().find(file.data(), kSize).has_value());

  REQUIRE(unlink(path.c_str()) == 0);
  CHECK_FALSE(MappedFiles().find(file.data(), kSize).has_value());
}

TEST_CASE("FileIdentity_WrittenTo_IsAnother") {
  const std::string path = temporary("genai-written");
  const MappedFile file(path);
  REQUIRE(file.identity().has_value());
  std::ofstream(path, std::ios::app) << "more";
  const int descriptor = open(path.c_str(), O_RDONLY);
  const auto now = file_identity(descriptor);
  close(descriptor);

  REQUIRE(now.has_value());
  CHECK(*now != *file.identity());
  CHECK_FALSE(file_identity(-1).has_value());
}

TEST_CASE("IsSettled_ByTheStepsOfTheFileSystemsClock") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  FileIdentity file;
  file.changed_ns = 1000 * kSecond + 123'456'789;
  CHECK_FALSE(is_settled(file, file.changed_ns + 10'000'000));
  CHECK(is_settled(file, file.changed_ns + 51'000'000));
  CHECK_FALSE(is_settled(file, file.changed_ns - kSecond));

  file.changed_ns = 1000 * kSecond;  // as of a file system that counts in seconds, or in two of them
  CHECK_FALSE(is_settled(file, file.changed_ns + 2 * kSecond));
  CHECK(is_settled(file, file.changed_ns + 2 * kSecond + 51'000'000));
}

}  // namespace
}  // namespace genai
#endif
