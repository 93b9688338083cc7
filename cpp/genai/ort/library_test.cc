#include "genai/ort/library.h"

#include "genai/base/error.h"
#include "genai/ort/test_library.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace genai::ort {
namespace {

/// Code and message of the error of load(path).
std::pair<ErrorCode, std::string> load_failure(const std::string& path) {
  try {
    Library::load(path);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  FAIL("no error");
  return {};
}

}  // namespace

TEST_CASE("Library_PathIsNotAbsolute_IsAnInvalidArgument") {
  CHECK(load_failure("libonnxruntime.so").first == ErrorCode::kInvalidArgument);
}

TEST_CASE("Library_NoSuchFile_SaysWhatToInstall") {
  const auto [code, message] = load_failure("/no/such/libonnxruntime.so");

  CHECK(code == ErrorCode::kNotFound);
  CHECK(message.find("/no/such/libonnxruntime.so") == 0);
  CHECK(message.find("pip install onnxruntime") != std::string::npos);
}

TEST_CASE("Library_FileIsNotALibrary_IsABackendError") {
  const TestFolder folder;
  const auto [code, message] = load_failure(folder.write("broken.so", "this is text"));

  CHECK(code == ErrorCode::kBackend);
  CHECK(message.find("cannot be loaded") != std::string::npos);
}

TEST_CASE("Library_Version_IsRefusedBelowTheFloor") {
  CHECK(supported_minor_version("/x", "1.22.0") == 22);
  CHECK(supported_minor_version("/x", "1.32.1") == 32);
  CHECK_THROWS_WITH_AS(supported_minor_version("/x", "1.21.9"),
                       "/x: this is ONNX Runtime 1.21.9; 1.22 or later is needed. Install it anew: pip install "
                       "--upgrade onnxruntime",
                       Error);
  for (const char* version : {"", "2.0.0", "1", "x.32", "0.9.0"}) {
    CAPTURE(version);
    CHECK_THROWS_AS(supported_minor_version("/x", version), Error);
  }
}

TEST_CASE("Library_Loaded_KnowsItsVersionAndProviders") {
  const std::optional<std::string> path = test_library();
  if (!path) return;

  const Library& library = Library::load(*path);

  CHECK(library.minor_version() >= Library::kMinMinorVersion);
  CHECK(library.version().find("1." + std::to_string(library.minor_version()) + ".") == 0);
  const std::vector<std::string> providers = library.available_providers();
  CHECK(std::find(providers.begin(), providers.end(), "CPUExecutionProvider") != providers.end());
  CHECK(std::string(std::getenv("ORT_DISABLE_TELEMETRY")) == "1");
}

TEST_CASE("Library_LoadedTwice_IsOneObject") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  const TestFolder folder;
  const std::string link = folder.path() + "/link.so";
  std::filesystem::create_symlink(*path, link);

  CHECK(&Library::load(*path) == &Library::load(*path));
  CHECK(&Library::load(link) == &Library::load(*path));
}

}  // namespace genai::ort
