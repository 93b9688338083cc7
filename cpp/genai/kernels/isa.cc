#include "genai/kernels/isa.h"

#include "genai/base/error.h"

#include <cstdlib>
#include <string>

namespace genai::kernels {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return "plain";
    case Isa::kNeon:
      return "neon";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas = {Isa::kPlain};
#if defined(__aarch64__)
  isas.push_back(Isa::kNeon);
#endif
#if defined(__x86_64__)
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_avx2) isas.push_back(Isa::kAvx2);
  if (has_avx2 && __builtin_cpu_supports("avx512f")) isas.push_back(Isa::kAvx512);
#endif
  return isas;
}

Isa chosen_isa() {
  const std::vector<Isa> isas = supported_isas();
  const char* const name = std::getenv("ONNX_GENAI_CPU_ISA");
  if (name == nullptr || *name == '\0') return isas.back();
  std::string known;
  for (const Isa isa : isas) {
    if (isa_name(isa) == name) return isa;
    known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw Error(ErrorCode::kInvalidArgument,
              "ONNX_GENAI_CPU_ISA is \"" + std::string(name) + "\"; this CPU and build have: " + known);
}

}  // namespace genai::kernels
