#include "genai/runner/runtime_info.h"

#include "genai/ort/library.h"
#include "genai/ort/provider.h"

namespace genai::runner {

RuntimeInfo runtime_info(const std::string& ort_library) {
  const ort::Library& library = ort::Library::load(ort_library);
  return {
      .version = library.version(), .api_version = library.minor_version(), .providers = library.available_providers()};
}

std::string check_provider(const std::string& ort_library, const ProviderOption& provider) {
  return ort::check_provider(ort::Library::load(ort_library),
                             {provider.name, provider.plugin_path, provider.device, provider.options});
}

}  // namespace genai::runner
