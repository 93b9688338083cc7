#include "genai/ort/adapter_file.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace genai::ort {
namespace {

template <typename T>
void put(std::string& bytes, T value) {
  const std::size_t place = bytes.size();
  bytes.resize(place + sizeof(T));
  std::memcpy(bytes.data() + place, &value, sizeof(T));
}

/// One parameter "w" float32 [3, 2] without data, laid out by hand:
///
///      0 root -> 20   4 "TORT"    8 table of the adapter's fields   20 adapter   28 list -> 48
///     36 table of the parameter's fields   48 parameter   64 "w"   72 dims
std::string adapter_of_one() {
  std::string bytes;
  put<std::uint32_t>(bytes, 20);
  bytes += "TORT";
  for (const int each : {12, 8, 0, 0, 0, 4}) put<std::uint16_t>(bytes, static_cast<std::uint16_t>(each));
  put<std::int32_t>(bytes, 12);        // 20: fields at 8
  put<std::uint32_t>(bytes, 4);        // 24: parameters at 28
  put<std::uint32_t>(bytes, 1);        // 28
  put<std::uint32_t>(bytes, 48 - 32);  // 32
  for (const int each : {10, 16, 4, 8, 12, 0}) put<std::uint16_t>(bytes, static_cast<std::uint16_t>(each));
  put<std::int32_t>(bytes, 12);        // 48: fields at 36
  put<std::uint32_t>(bytes, 64 - 52);  // 52: name
  put<std::uint32_t>(bytes, 72 - 56);  // 56: dims
  put<std::int32_t>(bytes, 1);         // 60: float
  put<std::uint32_t>(bytes, 1);        // 64
  bytes += std::string("w\0\0\0", 4);
  put<std::uint32_t>(bytes, 2);  // 72
  put<std::int64_t>(bytes, 3);
  put<std::int64_t>(bytes, 2);
  return bytes;
}

TEST_CASE("AdapterFile_OfOneParameter_IsRead") {
  const std::vector<AdapterParameter> found = read_adapter_parameters(adapter_of_one(), "a");

  REQUIRE(found.size() == 1);
  CHECK(found[0].name == "w");
  CHECK(found[0].dtype == DType::kFloat32);
  CHECK(found[0].dims == std::vector<std::int64_t>{3, 2});
}

TEST_CASE("AdapterFile_CutAnywhere_IsRefusedByName") {
  const std::string whole = adapter_of_one();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    try {
      read_adapter_parameters(std::string_view(whole).substr(0, size), "some/file");
      FAIL("cut at " << size << " was read");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadPackage);
      CHECK(std::string(error.what()).find("some/file: ") == 0);
    }
  }
}

TEST_CASE("AdapterFile_WithAnyByteChanged_IsReadOrRefused") {
  const std::string whole = adapter_of_one();
  for (std::size_t place = 0; place < whole.size(); ++place) {
    for (const int value : {0, 1, 127, 128, 255}) {
      std::string bytes = whole;
      bytes[place] = static_cast<char>(value);
      try {
        read_adapter_parameters(bytes, "a");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kBadPackage);
      }
    }
  }
}

TEST_CASE("AdapterFile_GitLfsPointer_SaysSo") {
  CHECK_THROWS_WITH_AS(read_adapter_parameters("version https://git-lfs.github.com/spec/v1\n", "a"),
                       doctest::Contains("git lfs pull"), Error);
}

}  // namespace
}  // namespace genai::ort
