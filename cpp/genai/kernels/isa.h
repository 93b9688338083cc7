#pragma once

#include <string_view>
#include <vector>

namespace genai::kernels {

/// Instruction sets that kernels are written for, slowest first.
enum class Isa { kPlain, kNeon, kNeonDot, kNeonI8mm, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };

/// As in ONNX_GENAI_CPU_ISA: "plain", "neon", "neondot", "neoni8mm", "avx2", "avxvnni", "avx512", "avx512vnni",
/// "avx512bf16", "amx".
std::string_view isa_name(Isa isa);

/// What this build and this CPU can run, slowest first; kPlain always. kAvx2 includes FMA and F16C, kAvx512 is
/// AVX-512F; the others add products of int8: NEON's dot product and its products of two rows and two columns, VNNI on
/// 256 and on 512 bits (with AVX-512 BW, DQ and VL); and of bfloat16: in vectors, and in tiles. The first call asks the
/// system for the use of tiles. Thread-safe.
std::vector<Isa> supported_isas();

/// The fastest supported one, or the one that the environment variable ONNX_GENAI_CPU_ISA names. Throws
/// kInvalidArgument when that name is unknown or the CPU lacks it. Reads the environment at each call.
Isa chosen_isa();

/// Whether rows of prompts may be computed in bfloat16: unless the environment variable ONNX_GENAI_PROMPT_BF16 is 0.
bool allows_prompt_bf16();

}  // namespace genai::kernels
