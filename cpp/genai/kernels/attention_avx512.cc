#include "genai/kernels/attention.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)

#include <immintrin.h>

// Only what follows is compiled for the instruction set: a function of another header must not be.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma,f16c")
// GCC 12 sees uninitialised reads in its own AVX-512 header (PR 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "genai/kernels/attention_impl.h"
#include "genai/kernels/vec_avx512.h"

namespace genai::kernels {

const AttentionKernels kAttentionAvx512 = Attention<VecAvx512>::kTable;
const AttentionKernels kAttentionAvx512Far = Attention<VecAvx512Far>::kTable;

}  // namespace genai::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
