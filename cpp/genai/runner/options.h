#pragma once

#include "genai/base/trace.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace genai::runner {

/// An execution provider, with its own options; fields as in ort::Provider.
struct ProviderOption {
  std::string name;         ///< ONNX Runtime's name; of a plugin library: what it is registered as, or empty
  std::string plugin_path;  ///< absolute path of a plugin library; empty = built into ONNX Runtime
  std::string device;       ///< "CPU", "GPU" or "NPU": which devices of a plugin; empty = all
  std::vector<std::pair<std::string, std::string>> options;
};

/// Memory for KV, in bytes. Contiguous decoders use `hot_bytes` only.
struct KvMemory {
  std::int64_t hot_bytes = 0;   ///< 0 = no limit known: the decoder chooses
  std::int64_t warm_bytes = 0;  ///< 0 = no warm tier
  std::int64_t cold_bytes = 0;  ///< 0 = no cold tier
  std::string cold_folder;      ///< existing folder for the cold tier's file, which is removed at the end
};

/// Files of packed weights, which processes share.
struct PackedFiles {
  std::string folder;          ///< absolute; made when it is needed; empty = none are read or written
  std::int64_t max_bytes = 0;  ///< of all of them together
};

/// How a model is loaded.
struct RunnerOptions {
  std::string ort_library;                ///< absolute path of libonnxruntime
  int intra_op_threads = 0;               ///< 0 = physical cores that the process may use
  bool spinning = true;                   ///< ORT's workers spin between parallel nodes of a step
  std::vector<ProviderOption> providers;  ///< in order of preference; empty = CPU
  std::vector<std::pair<std::string, std::string>> session_config;  ///< ORT session config entries
  KvMemory kv;
  PackedFiles packed;
  std::shared_ptr<Tracer> tracer;  ///< the engine's; null = nothing is recorded
};

}  // namespace genai::runner
