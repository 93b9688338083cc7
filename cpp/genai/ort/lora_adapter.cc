#include "genai/ort/lora_adapter.h"

#include "genai/base/error.h"
#include "genai/base/utf8.h"
#include "genai/ort/status.h"

#include "onnxruntime/abi.h"

namespace genai::ort {

LoraAdapter::LoraAdapter(const Library& library, std::string_view bytes, const std::string& path)
    : handle_(nullptr, Release{&library}), parameters_(read_adapter_parameters(bytes, path)) {
  ort_abi::LoraAdapter* adapter = nullptr;
  // Given a path, ONNX Runtime would map the file, and a process ends when a file that it has mapped is cut.
  const StatusText status = take_status(library.api(), library.api().call<ort_abi::CreateLoraAdapterFromArray>(
                                                           static_cast<const void*>(bytes.data()), bytes.size(),
                                                           static_cast<ort_abi::Allocator*>(nullptr), &adapter));
  if (status.code != 0) {
    throw Error(ErrorCode::kBadPackage, path + ": ONNX Runtime cannot load the adapter (" +
                                            decode_utf8_lossy(status.message) +
                                            "). Copy the file again, or write it anew.");
  }
  handle_.reset(adapter);
}

void LoraAdapter::Release::operator()(ort_abi::LoraAdapter* adapter) const {
  library->api().call<ort_abi::ReleaseLoraAdapter>(adapter);
}

}  // namespace genai::ort
