#include "genai/ort/provider.h"

#include "genai/base/error.h"
#include "genai/ort/library.h"
#include "genai/ort/session.h"
#include "genai/ort/test_library.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>

namespace genai::ort {
namespace {

/// Path of a plugin provider with a CPU device, such as the one in the package onnxruntime-ggml.
std::optional<std::string> test_plugin() {
  const char* const path = std::getenv("GENAI_EP_PLUGIN");
  if (path == nullptr) MESSAGE("skipped: set GENAI_EP_PLUGIN to the path of a plugin execution provider");
  return path == nullptr ? std::nullopt : std::optional<std::string>(path);
}

ErrorCode failure(const Library& library, const Provider& provider, const std::string& part) {
  try {
    check_provider(library, provider);
  } catch (const Error& error) {
    CAPTURE(error.what());
    CHECK(std::string(error.what()).find(part) != std::string::npos);
    return error.code();
  }
  FAIL("no error");
  return ErrorCode::kInternal;
}

}  // namespace

TEST_CASE("Provider_Unknown_NamesThoseThatAreThere") {
  const std::optional<std::string> path = test_library();
  if (!path) return;

  const ErrorCode code = failure(Library::load(*path), {"nosuch", "", "", {}}, "CPUExecutionProvider");

  CHECK(code == ErrorCode::kUnsupported);
}

TEST_CASE("Provider_LibraryThatIsNoPlugin_IsRefusedEachTime") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  const Library& library = Library::load(*path);
  const TestFolder folder;
  const std::string file = folder.write("libnothing.so", "not a library");

  CHECK(failure(library, {"", "nothing.so", "", {}}, "absolute path") == ErrorCode::kInvalidArgument);
  CHECK(failure(library, {"", folder.path() + "/none.so", "", {}}, "none.so") == ErrorCode::kNotFound);
  for (int time = 0; time < 2; ++time) {
    CHECK(failure(library, {"", file, "", {}}, "libnothing.so") == ErrorCode::kUnsupported);
  }
}

TEST_CASE("Provider_Plugin_RunsAGraphAndNamesItself") {
  const std::optional<std::string> path = test_library();
  const std::optional<std::string> plugin = path ? test_plugin() : std::nullopt;
  if (!plugin) return;
  const Library& library = Library::load(*path);
  const Provider provider{"", *plugin, "CPU", {}};
  const TestFolder folder;

  const std::string name = check_provider(library, provider);
  CHECK(!name.empty());
  CHECK(name.find('/') == std::string::npos);
  CHECK(check_provider(library, {name, *plugin, "", {}}) == name);
  CHECK(failure(library, {"nosuch", *plugin, "", {}}, name) == ErrorCode::kUnsupported);

  SessionOptions options;
  options.providers.push_back(provider);
  const Session session(library, folder.write("relu.onnx", one_node_model("Relu")), options);
  RunFrame frame(session, {"x"}, {"y"});
  std::array<float, 3> x = {-1, 2, -3};
  frame.set_input(0, Value::view(library, DType::kFloat32, {3}, x.data()));
  frame.run(RunOptions(library));
  const Value y = frame.take_output(0);
  CHECK(std::abs(y.data_as<float>()[1] - 2.0F) < 1e-3F);
  CHECK(y.data_as<float>()[0] == 0.0F);
}

}  // namespace genai::ort
