#include "genai/ort/status.h"

#include "genai/ort/test_library.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace genai::ort {
namespace {

struct Case {
  StatusText status;
  ErrorCode expected;
  const char* part;  ///< of the message
};

bool contains(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

}  // namespace

// Texts of ONNX Runtime 1.32.0, shortened.
TEST_CASE("LoadError_TextsOfOnnxRuntime_GiveTheRightCode") {
  const TestFolder folder;
  const std::string path = folder.write("model.onnx", "not empty");
  const std::vector<Case> cases = {
      {{1, "Load model from m.onnx failed:Fatal error: pkg.x:BlockMul(-1) is not a registered function/op"},
       ErrorCode::kUnsupported,
       "the operator pkg.x:BlockMul,"},
      {{10, "This is an invalid model. In Node, (...) , Error No Op registered for FooBar with domain_version of 22"},
       ErrorCode::kUnsupported,
       "the operator FooBar,"},
      {{1,
        "External data path validation failed for initializer: w. Error: tensorprotoutils.cc:619 "
        "ValidateExternalDataPathFromDir External data path does not exist: \"/p/model.onnx.data\""},
       ErrorCode::kBadPackage,
       "its weights file /p/model.onnx.data is missing"},
      {{1,
        "Deserialize tensor w failed. GetExtDataFromTensorProto External initializer: w offset: 6144 size to read: "
        "2048 given file_length: 6656 are out of bounds or can not be read in full."},
       ErrorCode::kBadPackage,
       "external weights file cannot be read in full"},
      {{7, "Load model from m.onnx failed:Protobuf parsing failed."}, ErrorCode::kBadPackage, "not a whole ONNX model"},
      {{10, "This is an invalid model. Type Error: Type 'tensor(bool)' of input parameter (x) of operator (Add)"},
       ErrorCode::kBadPackage,
       "the graph is not valid"},
      {{9, "Could not find an implementation for Add(14) node with name ''"},
       ErrorCode::kUnsupported,
       "Could not find an implementation for Add(14)"},
      {{1, "Unsupported model IR version: 99, max supported IR version: 14"},
       ErrorCode::kUnsupported,
       "a newer onnxruntime may"},
      {{10, "This is an invalid model. In Node, (...) , Error Unrecognized attribute: bits for operator Gather"},
       ErrorCode::kUnsupported,
       "a newer onnxruntime may"},
      {{6, "something else"}, ErrorCode::kBackend, "error 6 (RUNTIME_EXCEPTION): something else"},
  };
  for (const Case& item : cases) {
    CAPTURE(item.status.message);
    const Error error = load_error(item.status, path);

    CAPTURE(error.what());
    CHECK(error.code() == item.expected);
    CHECK(contains(error, item.part));
    CHECK(contains(error, path));
  }
}

TEST_CASE("LoadError_FileOrItsDataIsAnLfsPointer_SaysSo") {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n";
  const TestFolder folder;
  const std::string model = folder.write("model.onnx", pointer);
  const TestFolder other;
  const std::string whole = other.write("model.onnx", "not empty");
  const std::string data = other.write("model.onnx.data", pointer);

  const Error of_model = load_error({7, "Protobuf parsing failed."}, model);
  const Error of_data = load_error({1, "External initializer: w are out of bounds"}, whole);

  CHECK(of_model.code() == ErrorCode::kBadPackage);
  CHECK(contains(of_model, model + ": this is a Git LFS pointer"));
  CHECK(contains(of_data, data + ": this is a Git LFS pointer"));
}

TEST_CASE("LoadError_EmptyFileOrFolder_SaysSo") {
  const TestFolder folder;

  CHECK(contains(load_error({2, "No graph was found in the protobuf."}, folder.write("a.onnx", "")), "file is empty"));
  CHECK(contains(load_error({7, "Protobuf parsing failed."}, folder.path()), "this is a folder"));
  CHECK(load_error({3, "File doesn't exist"}, "/no/model.onnx").code() == ErrorCode::kNotFound);
}

TEST_CASE("RunError_Texts_GiveTheRightCode") {
  CHECK(run_error({1, "Exiting due to terminate flag being set to true."}).code() == ErrorCode::kAborted);
  CHECK(run_error({6, "std::bad_alloc"}).code() == ErrorCode::kResourceExhausted);
  CHECK(run_error({6, "Failed to allocate memory for requested buffer of size 9"}).code() ==
        ErrorCode::kResourceExhausted);
  CHECK(run_error({2, "bad input"}).code() == ErrorCode::kBackend);
  CHECK(contains(run_error({2, "bad input"}), "error 2 (INVALID_ARGUMENT): bad input"));
  CHECK(status_name(99) == "UNKNOWN");
  CHECK(status_name(-1) == "UNKNOWN");
}

}  // namespace genai::ort
