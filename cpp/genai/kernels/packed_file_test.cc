#include "genai/kernels/packed_file.h"

#include "genai/kernels/packed_folder.h"

#include <doctest/doctest.h>

#if defined(__linux__)
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace genai::kernels {
namespace {
namespace fs = std::filesystem;

/// A new folder in `parent` that goes with the object.
class Folder {
 public:
  explicit Folder(const fs::path& parent) {
    std::string name = parent / "genai-file-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  std::string file() const { return path_ / "a.packed"; }

 private:
  fs::path path_;
};

constexpr std::size_t kMega = std::size_t{1} << 20;
/// Several in a segment, one that ends a segment, one that is larger than any, one that ends in the middle of a line.
constexpr std::size_t kSizes[] = {3 * kMega, 12 * kMega, 2 * kMega, 37 * kMega + 64, 5, 16 * kMega, kMega};

PackedKey key_of(std::size_t index) {
  PackedKey key;
  key.depth = 100 - static_cast<std::int64_t>(index);
  return key;
}

bool is_all(const std::byte* image, std::size_t index, int value) {
  return image[0] == static_cast<std::byte>(value) && std::memcmp(image, image + 1, kSizes[index] - 1) == 0;
}

void fill(std::byte* image, std::size_t index) {
  CHECK(is_all(image, index, 0));
  std::memset(image, static_cast<int>(index + 1), kSizes[index]);
}

bool is_filled(const std::byte* image, std::size_t index) {
  return is_all(image, index, static_cast<int>(index + 1));
}

/// Whether memory of this process is mapped from a file below, be it removed.
bool is_mapped(const fs::path& folder) {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return text.find(folder.string() + "/") != std::string::npos;
}

/// On the disk, and in memory, where files seldom have huge pages.
std::vector<fs::path> parents() {
  std::vector<fs::path> all = {fs::temp_directory_path()};
  if (fs::is_directory("/dev/shm") && access("/dev/shm", W_OK) == 0) all.emplace_back("/dev/shm");
  return all;
}

TEST_CASE("images are readable from the moment they are made, and in the file when it is finished") {
  for (const fs::path& parent : parents()) {
    CAPTURE(parent);
    const Folder folder(parent);
    std::string why;
    auto writer = PackedFileWriter::create(folder.file(), {.max_bytes = std::int64_t{1} << 30}, why);
    REQUIRE(writer != nullptr);
    std::vector<std::shared_ptr<const std::byte>> images;
    for (std::size_t i = 0; i < std::size(kSizes); ++i) {
      images.push_back(writer->add(key_of(i), kSizes[i], i % 2 == 0, [&](std::byte* image) { fill(image, i); }));
      for (std::size_t j = 0; j <= i; ++j) CHECK(is_filled(images[j].get(), j));
    }
    CHECK_FALSE(fs::exists(folder.file()));
    CHECK(writer->finish());
    writer = nullptr;
    for (std::size_t i = 0; i < images.size(); ++i) CHECK(is_filled(images[i].get(), i));

    const std::shared_ptr<const PackedFile> file = PackedFile::open(folder.file(), why);
    CHECK(why.empty());
    REQUIRE(file != nullptr);
    for (std::size_t i = 0; i < images.size(); ++i) {
      const PackedEntry* const entry = file->find(key_of(i));
      REQUIRE(entry != nullptr);
      CHECK(entry->size_bytes == kSizes[i]);
      CHECK(entry->has_zero_points == (i % 2 == 0 ? 1 : 0));
      CHECK(is_filled(file->image(*entry), i));
    }
    CHECK(file->find(key_of(50)) == nullptr);
  }
}

TEST_CASE("weights in files count while they live") {
  const Folder folder(fs::temp_directory_path());
  const std::size_t before = weight_bytes();
  std::string why;
  auto writer = PackedFileWriter::create(folder.file(), {.max_bytes = std::int64_t{1} << 30}, why);
  REQUIRE(writer != nullptr);
  std::shared_ptr<const std::byte> image = writer->add(key_of(0), kSizes[0], false, [](std::byte*) {});
  CHECK(writer->finish());
  writer = nullptr;
  CHECK(weight_bytes() - before == kSizes[0]);
  image = nullptr;
  CHECK(weight_bytes() == before);

  std::shared_ptr<const PackedFile> file = PackedFile::open(folder.file(), why);
  REQUIRE(file != nullptr);
  CHECK(weight_bytes() - before == kSizes[0]);
  file = nullptr;
  CHECK(weight_bytes() == before);
}

TEST_CASE("a file that becomes too large keeps its images in memory and gets no name") {
  const Folder folder(fs::temp_directory_path());
  std::string why;
  auto writer = PackedFileWriter::create(folder.file(), {.max_bytes = 20 << 20}, why);
  REQUIRE(writer != nullptr);
  const auto first = writer->add(key_of(0), kSizes[0], false, [](std::byte* image) { fill(image, 0); });
  CHECK(writer->add(key_of(3), kSizes[3], false, [](std::byte* image) { fill(image, 3); }) == nullptr);
  CHECK(writer->failure() == "it would have more than 20971520 bytes");
  CHECK_FALSE(writer->finish());

  CHECK_FALSE(is_mapped(fs::path(folder.file()).parent_path()));  // its room on the disk is free
  writer = nullptr;
  CHECK(is_filled(first.get(), 0));
  CHECK(fs::is_empty(fs::path(folder.file()).parent_path()));
}

TEST_CASE("a writer that is given up gives the room of its file back") {
  const Folder folder(fs::temp_directory_path());
  std::string why;
  auto writer = PackedFileWriter::create(folder.file(), {.max_bytes = std::int64_t{1} << 30}, why);
  REQUIRE(writer != nullptr);
  std::vector<std::shared_ptr<const std::byte>> images;
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    images.push_back(writer->add(key_of(i), kSizes[i], false, [&](std::byte* image) { fill(image, i); }));
    REQUIRE(images.back() != nullptr);
  }
  writer = nullptr;

  for (std::size_t i = 0; i < std::size(kSizes); ++i) CHECK(is_filled(images[i].get(), i));
  CHECK_FALSE(is_mapped(fs::path(folder.file()).parent_path()));
  CHECK(fs::is_empty(fs::path(folder.file()).parent_path()));
}

TEST_CASE("partial files are removed when nobody writes them any more") {
  const Folder folder(fs::temp_directory_path());
  const fs::path parent = fs::path(folder.file()).parent_path();
  std::string why;
  const auto writer = PackedFileWriter::create(folder.file(), {.max_bytes = std::int64_t{1} << 30}, why);
  REQUIRE(writer != nullptr);
  const fs::path held = fs::directory_iterator(parent)->path();
  const fs::path left = parent / (std::string("b.packed.1") + kPartialSuffix);
  const fs::path young = parent / (std::string("c.packed.1") + kPartialSuffix);
  for (const fs::path& path : {left, young}) std::ofstream(path) << "x";
  for (const fs::path& path : {held, left}) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::minutes(1));
  }

  remove_abandoned(parent);

  CHECK(fs::exists(held));
  CHECK_FALSE(fs::exists(left));
  CHECK(fs::exists(young));
}

TEST_CASE("a disk without enough room gets no file") {
  const Folder folder(fs::temp_directory_path());
  std::string why;
  CHECK(PackedFileWriter::create(folder.file(), {1 << 30, std::int64_t{1} << 60}, why) == nullptr);
  CHECK(why == "the disk is almost full");
  CHECK(fs::is_empty(fs::path(folder.file()).parent_path()));
}

}  // namespace
}  // namespace genai::kernels
#endif
