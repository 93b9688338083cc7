#pragma once

// Helpers of the tests of this folder.

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace genai::ort {

/// Path of libonnxruntime for tests; nullopt, with a message, when GENAI_ORT_LIBRARY does not give it.
inline std::optional<std::string> test_library() {
  const char* const path = std::getenv("GENAI_ORT_LIBRARY");
  if (path == nullptr) MESSAGE("skipped: set GENAI_ORT_LIBRARY to the path of libonnxruntime");
  return path == nullptr ? std::nullopt : std::optional<std::string>(path);
}

/// A folder that is removed with its files when the test ends.
class TestFolder {
 public:
  TestFolder() : path_(std::filesystem::temp_directory_path() / "genai_test_XXXXXX") { path_ = mkdtemp(path_.data()); }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, std::string_view content) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  std::string path_;
};

/// A model file built by hand in the protobuf wire format: one node `op_type` (domain `domain`) from the float input
/// "x" to the float output "y", both [batch].
inline std::string one_node_model(std::string_view op_type, std::string_view domain = "") {
  const auto field = [](int number, std::string_view bytes) {
    std::string text(1, static_cast<char>(number << 3 | 2));
    text += static_cast<char>(bytes.size());
    return text + std::string(bytes);
  };
  const auto number = [](int field_number, int value) {
    return std::string{static_cast<char>(field_number << 3), static_cast<char>(value)};
  };
  const auto value_info = [&](std::string_view name) {
    const std::string shape = field(1, field(2, "batch"));      // dim_param
    const std::string tensor = number(1, 1) + field(2, shape);  // elem_type float, shape
    return field(1, name) + field(2, field(1, tensor));
  };
  const std::string node = field(1, "x") + field(2, "y") + field(3, "n") + field(4, op_type) + field(7, domain);
  const std::string graph = field(1, node) + field(2, "g") + field(11, value_info("x")) + field(12, value_info("y"));
  std::string model = number(1, 8) + field(7, graph) + field(8, field(1, "") + number(2, 17));
  if (!domain.empty()) model += field(8, field(1, domain) + number(2, 1));
  return model;
}

}  // namespace genai::ort
