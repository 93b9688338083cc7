#pragma once

#include <string>
#include <utility>
#include <vector>

namespace genai::runner {

/// An execution provider by ONNX Runtime's name, with its own options.
struct ProviderOption {
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;
};

/// How a model is loaded.
struct RunnerOptions {
  std::string ort_library;                ///< absolute path of libonnxruntime
  int intra_op_threads = 0;               ///< 0 = physical cores that the process may use
  bool spinning = true;                   ///< ORT's workers spin between parallel nodes of a step
  std::vector<ProviderOption> providers;  ///< in order of preference; empty = CPU
  std::vector<std::pair<std::string, std::string>> session_config;  ///< ORT session config entries
};

}  // namespace genai::runner
