#pragma once

#include "genai/base/error.h"
#include "genai/runner/cold_tier.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace genai::runner {

/// Message of the error that `action` throws, which must have this code.
inline std::string error_of(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

/// A cold file in memory that tests damage and fill up.
class TestColdFile : public ColdFile {
 public:
  /// What the test keeps of it.
  struct Disk {
    std::vector<std::byte> bytes;
    std::int64_t size = 1 << 20;  ///< writes that end behind it fail half-way
    bool unreadable = false;
  };
  explicit TestColdFile(Disk& disk) : disk_(disk) {}

  void write(std::int64_t offset, std::span<const std::byte> bytes) override {
    const std::int64_t end = offset + static_cast<std::int64_t>(bytes.size());
    disk_.bytes.resize(std::max(disk_.bytes.size(), static_cast<std::size_t>(end)));
    const auto written = bytes.first(end <= disk_.size ? bytes.size() : bytes.size() / 2);
    std::copy(written.begin(), written.end(), disk_.bytes.begin() + offset);
    if (end > disk_.size) throw Error(ErrorCode::kBackend, "the test's disk is full");
  }
  void read(std::int64_t offset, std::span<std::byte> bytes) override {
    if (disk_.unreadable) throw Error(ErrorCode::kBackend, "the test's disk cannot be read");
    std::copy_n(disk_.bytes.begin() + offset, bytes.size(), bytes.begin());
  }
  std::int64_t free_bytes() const override { return disk_.size; }
  const std::string& where() const override { return where_; }

 private:
  Disk& disk_;
  std::string where_ = "the test's disk";
};

/// An empty folder of its own, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "genai-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

}  // namespace genai::runner
