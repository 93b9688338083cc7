#pragma once

#include <string_view>
#include <vector>

namespace genai::kernels {

/// Instruction sets that kernels are written for, slowest first.
enum class Isa { kPlain, kNeon, kAvx2, kAvx512 };

/// As in ONNX_GENAI_CPU_ISA: "plain", "neon", "avx2", "avx512".
std::string_view isa_name(Isa isa);

/// What this build and this CPU can run, slowest first; kPlain always. kAvx2 includes FMA and F16C; kAvx512 is
/// AVX-512F.
std::vector<Isa> supported_isas();

/// The fastest supported one, or the one that the environment variable ONNX_GENAI_CPU_ISA names. Throws
/// kInvalidArgument when that name is unknown or the CPU lacks it. Reads the environment at each call.
Isa chosen_isa();

}  // namespace genai::kernels
