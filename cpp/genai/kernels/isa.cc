#include "genai/kernels/isa.h"

#include "genai/base/error.h"

#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace genai::kernels {
namespace {

#if defined(__x86_64__)

/// The words of cpuid's leaf 7, which __builtin_cpu_supports of older compilers does not know in full.
bool cpu_has_avx_vnni() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1U << 4) != 0;
}

/// Products of bfloat16 in vectors, and the conversion to it.
bool cpu_has_avx512_bf16() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1U << 5) != 0;
}

bool cpu_has_bf16_tiles() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kTiles = 1U << 24 | 1U << 22;  // tiles, and their products of bfloat16
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTiles) == kTiles;
}

/// Linux gives a process the tiles' state on demand only.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

#endif

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return "plain";
    case Isa::kNeon:
      return "neon";
    case Isa::kNeonDot:
      return "neondot";
    case Isa::kNeonI8mm:
      return "neoni8mm";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvxVnni:
      return "avxvnni";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas = {Isa::kPlain};
#if defined(__aarch64__)
  isas.push_back(Isa::kNeon);
#if defined(__linux__)
  const bool has_dot = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  if (has_dot) isas.push_back(Isa::kNeonDot);
  constexpr unsigned long kI8mm = 1UL << 13;  // HWCAP2_I8MM, which older headers lack
  if (has_dot && (getauxval(AT_HWCAP2) & kI8mm) != 0) isas.push_back(Isa::kNeonI8mm);
#endif
#endif
#if defined(__x86_64__)
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_avx2) isas.push_back(Isa::kAvx2);
  if (has_avx2 && cpu_has_avx_vnni()) isas.push_back(Isa::kAvxVnni);
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f");
  if (has_avx512) isas.push_back(Isa::kAvx512);
  const bool has_vnni = has_avx512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  if (has_vnni) isas.push_back(Isa::kAvx512Vnni);
  const bool has_bf16 = has_vnni && cpu_has_avx512_bf16();
  if (has_bf16) isas.push_back(Isa::kAvx512Bf16);
  if (has_bf16 && cpu_has_bf16_tiles() && may_use_tiles()) isas.push_back(Isa::kAmx);
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

bool allows_prompt_bf16() {
  const char* const value = std::getenv("ONNX_GENAI_PROMPT_BF16");
  return value == nullptr || std::string_view(value) != "0";
}

}  // namespace genai::kernels
