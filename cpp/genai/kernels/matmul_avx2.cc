#include "genai/kernels/matmul.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__x86_64__)

#include <immintrin.h>

// Only what follows is compiled for the instruction set: a function of another header must not be.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
// GCC 12 sees uninitialised reads in its own header (PR 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "genai/kernels/dot_avx2.h"
#include "genai/kernels/matmul_impl.h"

namespace genai::kernels {

const MatMulKernels kMatMulAvx2 = MatMul<DotAvx2<false>>::kTable;

}  // namespace genai::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
