#include "genai/runner/cold_tier.h"

#include "genai/base/checksum.h"
#include "genai/base/error.h"
#include "genai/runner/test_cold_file.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <random>

namespace genai::runner {
namespace {

std::vector<std::byte> random_bytes(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// No file of this process may grow behind `bytes` while it lives: a full disk without a disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

}  // namespace

TEST_CASE("Checksum_OneBitFlipped_Changes") {
  for (const std::size_t size : {1U, 7U, 8U, 31U, 32U, 33U, 100U}) {
    CAPTURE(size);
    std::vector<std::byte> bytes = random_bytes(size, 1);
    const std::uint64_t good = checksum(bytes);
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      CHECK(checksum(bytes) != good);
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    CHECK(checksum(bytes) == good);
  }
}

TEST_CASE("Checksum_ZerosOfDifferentLength_Differ") {
  std::vector<std::uint64_t> sums;
  for (std::size_t size = 0; size < 100; ++size) sums.push_back(checksum(std::vector<std::byte>(size)));

  std::sort(sums.begin(), sums.end());

  CHECK(std::adjacent_find(sums.begin(), sums.end()) == sums.end());
}

TEST_CASE("ColdTier_MoreAllowedThanFree_TakesWhatIsFree") {
  TestColdFile::Disk disk;
  disk.size = 10 * 4096 + 5;

  CHECK(ColdTier(std::make_unique<TestColdFile>(disk), 1000, 1 << 20).num_blocks() == 10);
  CHECK(ColdTier(std::make_unique<TestColdFile>(disk), 1000, 3 * 4096 + 4095).num_blocks() == 3);
  CHECK(ColdTier(std::make_unique<TestColdFile>(disk), 5000, 1 << 20).num_blocks() == 5);
}

TEST_CASE("ColdTier_NoRoomForOneBlock_IsRefused") {
  TestColdFile::Disk disk;

  CHECK(error_of([&] { ColdTier(std::make_unique<TestColdFile>(disk), 1000, 4095); }, ErrorCode::kInvalidArgument) ==
        "a cold KV tier of 4095 bytes does not hold one block of this model, 4096 bytes. Allow more disk space.");
  disk.size = 4000;
  CHECK(
      error_of([&] { ColdTier(std::make_unique<TestColdFile>(disk), 1000, 1 << 20); }, ErrorCode::kResourceExhausted) ==
      "the test's disk has 4000 bytes left on its disk; one block takes 4096 bytes. Free disk space or name another "
      "folder.");
}

TEST_CASE("ColdFile_FolderMissingOrNotWritable_SaysSo") {
  const TestFolder folder;
  const std::string missing = folder.path() + "/missing";
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "text";

  CHECK(error_of([&] { open_cold_file(missing); }, ErrorCode::kInvalidArgument) ==
        "no file for the cold KV tier can be made in \"" + missing +
            "\": No such file or directory. Name an existing folder that can be written to.");
  CHECK(error_of([&] { open_cold_file(file); }, ErrorCode::kInvalidArgument).find("it is not a folder") !=
        std::string::npos);
  CHECK(error_of([&] { open_cold_file(""); }, ErrorCode::kInvalidArgument).find("No such file") != std::string::npos);
  // Nobody may make files there, root neither.
  CHECK(error_of([&] { open_cold_file("/proc"); }, ErrorCode::kInvalidArgument).find("\"/proc\": ") !=
        std::string::npos);
}

TEST_CASE("ColdFile_DiskFull_FailsWithItsCauseAndGoesOnLater") {
  const TestFolder folder;
  ColdTier tier(open_cold_file(folder.path()), 6000, 1 << 20);
  const std::vector<std::byte> first = random_bytes(6000, 1);
  const std::vector<std::byte> second = random_bytes(6000, 2);
  std::vector<std::byte> read(6000);
  tier.write(0, first);
  {
    const FileSizeLimit limit(8192 + 3000);

    // The first half is written before the limit is met.
    CHECK(error_of([&] { tier.write(1, second); }, ErrorCode::kBackend) ==
          "cannot write 3000 bytes at 11192 of the cold KV tier's file in " + folder.path() + ": File too large");
    CHECK_THROWS_AS(tier.read(1, read), Error);
  }
  tier.write(1, second);

  tier.read(1, read);
  CHECK(read == second);
  tier.read(0, read);
  CHECK(read == first);
}

}  // namespace genai::runner
