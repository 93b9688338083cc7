#include "genai/runner/session_options.h"

namespace genai::runner {

ort::SessionOptions session_options(const RunnerOptions& options, int intra_op_threads) {
  ort::SessionOptions result;
  result.intra_op_threads = intra_op_threads;
  result.spinning = options.spinning;
  for (const ProviderOption& provider : options.providers) {
    if (provider.name == "cpu" || provider.name == "CPUExecutionProvider") continue;
    result.providers.push_back({.name = provider.name,
                                .plugin_path = provider.plugin_path,
                                .device = provider.device,
                                .options = provider.options});
  }
  result.config = options.session_config;
  return result;
}

}  // namespace genai::runner
