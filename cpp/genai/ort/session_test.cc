#include "genai/ort/session.h"

#include "genai/base/error.h"
#include "genai/ort/test_library.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>

namespace genai::ort {
namespace {

/// Code of the error of loading `path`.
ErrorCode load_failure(const Library& library, const std::string& path, std::string part) {
  try {
    const Session session(library, path, SessionOptions{});
  } catch (const Error& error) {
    CAPTURE(error.what());
    CHECK(std::string(error.what()).find(part) != std::string::npos);
    return error.code();
  }
  FAIL("no error");
  return ErrorCode::kInternal;
}

}  // namespace

TEST_CASE("Session_OneNode_RunsWithGivenAndWithAllocatedOutputs") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  const Library& library = Library::load(*path);
  const TestFolder folder;
  const Session session(library, folder.write("relu.onnx", one_node_model("Relu")), SessionOptions{});
  const RunOptions options(library);
  RunFrame frame(session, {"x"}, {"y"});
  std::array<float, 3> x = {-1, 2, -3};
  std::array<float, 3> y = {9, 9, 9};
  frame.set_input(0, Value::view(library, DType::kFloat32, {3}, x.data()));

  frame.set_output(0, Value::view(library, DType::kFloat32, {3}, y.data()));
  frame.run(options);
  CHECK(y == std::array<float, 3>{0, 2, 0});

  frame.set_output(0, Value());
  const Value lent = Value::view(library, DType::kFloat32, {2}, x.data());
  frame.lend_input(0, lent);
  frame.run(options);
  const Value allocated = frame.take_output(0);
  CHECK(allocated.dims() == Dims{2});
  CHECK(allocated.data_as<float>()[1] == 2.0F);
  CHECK(frame.output(0).empty());
}

TEST_CASE("RunOptions_Profiled_WritesOneFileARunUntilStopped") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  const Library& library = Library::load(*path);
  const TestFolder folder;
  const Session session(library, folder.write("relu.onnx", one_node_model("Relu")), SessionOptions{});
  RunOptions options(library);
  if (!options.can_profile()) return;
  RunFrame frame(session, {"x"}, {"y"});
  std::array<float, 1> x = {1};
  frame.set_input(0, Value::view(library, DType::kFloat32, {1}, x.data()));
  const std::filesystem::path place = std::filesystem::path(folder.path());
  const auto num_files = [&] {
    return std::ranges::count_if(std::filesystem::directory_iterator(place),
                                 [](const auto& entry) { return entry.path().extension() == ".json"; });
  };

  options.profile_to((place / "run0").string());
  frame.run(options);
  CHECK(num_files() == 1);
  options.profile_to((place / "run1").string());
  frame.run(options);
  CHECK(num_files() == 2);
  options.stop_profiling();
  frame.run(options);
  CHECK(num_files() == 2);
}

TEST_CASE("Session_Ports_HaveNamesTypesAndDims") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  const std::string model = one_node_model("Relu");

  const Session session(Library::load(*path), {model, "/tmp", "/x/relu.onnx"}, SessionOptions{});

  REQUIRE(session.inputs().size() == 1);
  CHECK(session.inputs()[0].name == "x");
  CHECK(session.inputs()[0].dtype == DType::kFloat32);
  CHECK(session.inputs()[0].dims == std::vector<std::int64_t>{-1});
  CHECK(session.find_output("y") != nullptr);
  CHECK(session.find_output("x") == nullptr);
  CHECK_THROWS_AS(RunFrame(session, {"z"}, {"y"}), Error);
}

TEST_CASE("Session_BrokenModels_AreErrorsWithTheRightCode") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  const Library& library = Library::load(*path);
  const TestFolder folder;
  const std::string model = one_node_model("Relu");

  CHECK(load_failure(library, folder.path() + "/none.onnx", "no such model file") == ErrorCode::kNotFound);
  CHECK(load_failure(library, folder.path(), "this is a folder") == ErrorCode::kBadPackage);
  CHECK(load_failure(library, folder.write("e.onnx", ""), "file is empty") == ErrorCode::kBadPackage);
  CHECK(load_failure(library, folder.write("t.onnx", model.substr(0, model.size() / 2)), "not a whole ONNX model") ==
        ErrorCode::kBadPackage);
  CHECK(load_failure(library, folder.write("l.onnx", "version https://git-lfs.github.com/spec/v1\n"), "LFS pointer") ==
        ErrorCode::kBadPackage);
  CHECK(load_failure(library, folder.write("u.onnx", one_node_model("Fancy", "my.ops")), "operator my.ops:Fancy") ==
        ErrorCode::kUnsupported);
  CHECK(load_failure(library, folder.write("f.onnx", one_node_model("Fancy")), "operator Fancy") ==
        ErrorCode::kUnsupported);
}

TEST_CASE("Session_UnknownProvider_NamesThoseThatExist") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  SessionOptions options;
  options.providers = {{.name = "NoSuchProvider", .plugin_path = {}, .device = {}, .options = {}}};
  const TestFolder folder;

  CHECK_THROWS_AS(Session(Library::load(*path), folder.write("m.onnx", one_node_model("Relu")), options), Error);
}

TEST_CASE("RunOptions_Terminate_StopsRunsUntilCleared") {
  const std::optional<std::string> path = test_library();
  if (!path) return;
  const Library& library = Library::load(*path);
  const TestFolder folder;
  const Session session(library, folder.write("relu.onnx", one_node_model("Relu")), SessionOptions{});
  RunOptions options(library);
  RunFrame frame(session, {"x"}, {"y"});
  std::array<float, 1> x = {1};
  frame.set_input(0, Value::view(library, DType::kFloat32, {1}, x.data()));

  options.terminate();
  try {
    frame.run(options);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kAborted);
  }

  options.clear_terminate();
  frame.run(options);
  CHECK(frame.output(0).data_as<float>()[0] == 1.0F);
}

}  // namespace genai::ort
