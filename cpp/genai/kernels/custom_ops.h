#pragma once

#include "genai/ort/custom_op.h"
#include "genai/ort/library.h"

#include <memory>

namespace genai::kernels {

class PackedStore;

/// Domain of our operators in ONNX graphs.
inline constexpr const char* kOpDomain = "genai.runtime";

/// Our operators for sessions of `library`: PagedAttention (docs/design/paged.md). Made at the first call and kept
/// until the process ends. Thread-safe. Throws kBackend.
const ort::OpDomain& custom_op_domain(const ort::Library& library);

/// The same for one session, whose kernels take their packed weights from `store`. Must outlive the session.
std::unique_ptr<const ort::OpDomain> make_op_domain(const ort::Library& library, std::shared_ptr<PackedStore> store);

/// The same for an ONNX Runtime that this process did not load through ort::Library: adds the operators to
/// `session_options` (OrtSessionOptions*). `api_base`: what that library's OrtGetApiBase returns. Gives nullptr, or an
/// OrtStatus* that becomes the caller's. Thread-safe.
void* register_custom_ops(void* session_options, const void* api_base) noexcept;

}  // namespace genai::kernels
