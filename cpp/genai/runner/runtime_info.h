#pragma once

#include "genai/runner/options.h"

#include <string>
#include <vector>

namespace genai::runner {

/// Facts about an ONNX Runtime library, for `version` and error reports.
struct RuntimeInfo {
  std::string version;  ///< as the library says it, e.g. "1.32.0"
  int api_version = 0;
  std::vector<std::string> providers;  ///< execution providers in this build
};

/// Opens the library (absolute path) if it is not open yet. Throws kNotFound, kBackend, kUnsupported.
RuntimeInfo runtime_info(const std::string& ort_library);

/// Name of the execution provider as ONNX Runtime knows it, if a session could use it: the library (absolute path), or
/// the plugin library that the provider names, has it. Throws kNotFound, kUnsupported; the text says what there is.
std::string check_provider(const std::string& ort_library, const ProviderOption& provider);

}  // namespace genai::runner
