#include "genai/kernels/custom_ops.h"

#include "genai/kernels/matmul_nbits.h"
#include "genai/kernels/paged_attention.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace genai::kernels {
namespace {

std::vector<ort::OpDefinition> definitions(std::shared_ptr<PackedStore> store) {
  std::vector<ort::OpDefinition> all = paged_attention_definitions();
  for (ort::OpDefinition& definition : matmul_nbits_definitions(std::move(store))) all.push_back(std::move(definition));
  return all;
}

/// The domain of the ONNX Runtime that `key` stands for. Domains are kept until the process ends: sessions refer to
/// them, and ONNX Runtime does not tell when the last one is gone.
template <typename Api>
const ort::OpDomain& domain_of(const void* key, const Api& api) {
  static std::mutex mutex;
  static auto& domains = *new std::map<const void*, std::unique_ptr<const ort::OpDomain>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const ort::OpDomain>& domain = domains[key];
  if (!domain) {
    domain = std::make_unique<const ort::OpDomain>(api, kOpDomain, definitions(nullptr));
  }
  return *domain;
}

}  // namespace

const ort::OpDomain& custom_op_domain(const ort::Library& library) {
  return domain_of(&library, library.api());
}

std::unique_ptr<const ort::OpDomain> make_op_domain(const ort::Library& library, std::shared_ptr<PackedStore> store) {
  return std::make_unique<const ort::OpDomain>(library.api(), kOpDomain, definitions(std::move(store)));
}

void* register_custom_ops(void* session_options, const void* api_base) noexcept {
  try {
    domain_of(api_base, api_base).add_to(static_cast<ort_abi::SessionOptions*>(session_options));
    return nullptr;
  } catch (const std::exception& error) {
    return ort::make_status(api_base, error.what());
  }
}

}  // namespace genai::kernels
