#include "genai/runner/runtime_info.h"

#include "genai/ort/library.h"

namespace genai::runner {

RuntimeInfo runtime_info(const std::string& ort_library) {
  const ort::Library& library = ort::Library::load(ort_library);
  return {
      .version = library.version(), .api_version = library.minor_version(), .providers = library.available_providers()};
}

}  // namespace genai::runner
