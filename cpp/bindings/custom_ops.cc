// The function that ONNX Runtime looks for in a library of operators, so that plain onnxruntime can use ours:
// onnxruntime.SessionOptions().register_custom_ops_library(onnx_genai._core.__file__).

#include "genai/kernels/custom_ops.h"

/// session_options: OrtSessionOptions*; api_base: const OrtApiBase*; gives an OrtStatus* (nullptr = ok).
extern "C" [[gnu::visibility("default"), gnu::used]] void* RegisterCustomOps(void* session_options,
                                                                             const void* api_base) {
  return genai::kernels::register_custom_ops(session_options, api_base);
}
