#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ort_abi {
struct SessionOptions;
}  // namespace ort_abi

namespace genai::ort {

class Library;

/// An execution provider, e.g. {"XNNPACK", "", "", {{"intra_op_num_threads", "2"}}}, or one in a plugin library.
struct Provider {
  std::string name;         ///< ONNX Runtime's name; a plugin library is registered as it, empty = its file's name
  std::string plugin_path;  ///< absolute path of a plugin library; empty = built into ONNX Runtime
  std::string device;       ///< of a plugin: "CPU", "GPU" or "NPU"; empty = all devices it has
  std::vector<std::pair<std::string, std::string>> options;
};

/// Puts the provider behind those that are in the session options already. A plugin library is opened once and stays
/// open until the process ends. Throws kNotFound (no such plugin library), kUnsupported; the text says what there is.
void append_provider(const Library& library, ort_abi::SessionOptions* options, const Provider& provider);

/// The name of the provider that append_provider() would take: `provider.name`, or what the plugin library says. Throws
/// as that does. Makes session options and drops them; loads no model.
std::string check_provider(const Library& library, const Provider& provider);

}  // namespace genai::ort
