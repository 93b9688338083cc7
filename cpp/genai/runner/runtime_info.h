#pragma once

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

}  // namespace genai::runner
