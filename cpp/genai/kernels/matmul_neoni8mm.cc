#include "genai/kernels/matmul.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__aarch64__)

// Only what follows is compiled for the instruction set: a function of another header must not be. The pragma comes
// before arm_neon.h, which declares the instructions of the target only.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#endif

#include "genai/kernels/dot_neon.h"
#include "genai/kernels/matmul_impl.h"

#include <arm_neon.h>

namespace genai::kernels {

const MatMulKernels kMatMulNeonI8mm = MatMul<DotNeon<true, true>>::kTable;

}  // namespace genai::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __aarch64__
