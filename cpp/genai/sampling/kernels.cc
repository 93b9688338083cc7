#include "genai/sampling/kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "genai/base/error.h"

// Contracting a * b + c would make the instruction sets differ in the last bit.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
// GCC 12 sees uninitialised reads in its own AVX-512 header (PR 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace genai::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// exp(d) = 2^n * exp(r), n = round(d / ln 2), |r| <= ln 2 / 2, exp(r) by its Taylor polynomial of degree 7, whose
// error there is below 6e-9. ln 2 is split in two so that n * kLn2High is exact.
constexpr float kMinExponent = -87.0F;  // exp() of it is still a normal number
constexpr float kLog2E = 1.44269504F;
constexpr float kLn2High = 0.693359375F;
constexpr float kLn2Low = -2.12194440e-4F;
constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
constexpr std::array<float, 8> kTaylor = {1.0F / 5040, 1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F};
constexpr std::int32_t kRoundBits = std::bit_cast<std::int32_t>(kRound);

/// The values of the last, incomplete block, filled up with -inf, which neither wins nor counts.
struct PaddedTail {
  PaddedTail(const float* values, std::size_t size) {
    const std::size_t whole = size / kBlockSize * kBlockSize;
    std::fill(std::copy(values + whole, values + size, block), block + kBlockSize, -kInfinity);
  }
  float block[kBlockSize];
};

// ---- plain ----

/// Updates `scan` and returns the block's largest number.
float scan_block_plain(const float* v, RowScan& scan) {
  float max = -kInfinity;
  bool has_nan = false;
  for (std::size_t i = 0; i < kBlockSize; ++i) {
    has_nan |= std::isnan(v[i]);
    max = v[i] > max ? v[i] : max;
    scan.min = v[i] > -kInfinity && v[i] < scan.min ? v[i] : scan.min;
  }
  scan.has_nan |= has_nan;
  scan.max = std::max(scan.max, max);
  return max;
}

RowScan scan_plain(const float* values, std::size_t size, float* block_max) {
  RowScan scan{.max = -kInfinity, .min = kInfinity};
  const std::size_t whole = size / kBlockSize;
  for (std::size_t b = 0; b < whole; ++b) {
    block_max[b] = scan_block_plain(values + b * kBlockSize, scan);
  }
  if (size % kBlockSize != 0) block_max[whole] = scan_block_plain(PaddedTail(values, size).block, scan);
  scan.has_pos_inf = scan.max == kInfinity;
  return scan;
}

float sum_exp_block_plain(const float* v, float shift, float scale) {
  float lanes[16];
  for (std::size_t i = 0; i < 16; ++i) {
    const float first = exp_of((v[i] - shift) * scale) + exp_of((v[i + 16] - shift) * scale);
    const float second = exp_of((v[i + 32] - shift) * scale) + exp_of((v[i + 48] - shift) * scale);
    lanes[i] = first + second;
  }
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

void sum_exp_blocks_plain(const float* values, std::size_t size, float shift, float scale, float* sums) {
  const std::size_t whole = size / kBlockSize;
  for (std::size_t b = 0; b < whole; ++b) {
    sums[b] = sum_exp_block_plain(values + b * kBlockSize, shift, scale);
  }
  if (size % kBlockSize != 0) {
    sums[whole] = sum_exp_block_plain(PaddedTail(values, size).block, shift, scale);
  }
}

void exp_values_plain(const float* values, std::size_t size, float shift, float scale, float* out) {
  for (std::size_t i = 0; i < size; ++i) out[i] = exp_of((values[i] - shift) * scale);
}

constexpr Kernels kPlain{scan_plain, sum_exp_blocks_plain, exp_values_plain};

#if defined(__x86_64__)

/// Largest and sum of 4 lanes in the order of the plain loop's last two rounds.
inline float max_of_4(__m128 v) {
  v = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps(v, v, 1)));
}
inline float min_of_4(__m128 v) {
  v = _mm_min_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_min_ss(v, _mm_shuffle_ps(v, v, 1)));
}
inline float sum_of_4(__m128 v) {
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
}

// ---- AVX2: a block is 8 registers; lanes 0..7 and 8..15 of the 16 partial sums are two of them ----

[[gnu::target("avx2")]] inline __m256 exp_avx2(__m256 d) {
  const __m256 counts = _mm256_cmp_ps(d, _mm256_set1_ps(kMinExponent), _CMP_GE_OQ);
  const __m256 x = _mm256_and_ps(d, counts);
  const __m256 round = _mm256_set1_ps(kRound);
  const __m256 shifted = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2E)), round);
  const __m256 n = _mm256_sub_ps(shifted, round);
  const __m256 high = _mm256_sub_ps(x, _mm256_mul_ps(n, _mm256_set1_ps(kLn2High)));
  const __m256 r = _mm256_sub_ps(high, _mm256_mul_ps(n, _mm256_set1_ps(kLn2Low)));
  __m256 y = _mm256_set1_ps(kTaylor[0]);
  for (std::size_t i = 1; i < kTaylor.size(); ++i) {
    y = _mm256_add_ps(_mm256_mul_ps(y, r), _mm256_set1_ps(kTaylor[i]));
  }
  const __m256i exponent = _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127 - kRoundBits));
  const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  return _mm256_and_ps(_mm256_mul_ps(y, power), counts);
}

struct ScanAvx2 {
  __m256 min;
  __m256 nan;
};

[[gnu::target("avx2")]] inline float scan_block_avx2(const float* v, ScanAvx2& state) {
  const __m256 minus_inf = _mm256_set1_ps(-kInfinity);
  const __m256 plus_inf = _mm256_set1_ps(kInfinity);
  __m256 max = minus_inf;
  for (std::size_t i = 0; i < kBlockSize; i += 8) {
    const __m256 x = _mm256_loadu_ps(v + i);
    max = _mm256_max_ps(x, max);  // the second operand where either is NaN
    state.nan = _mm256_or_ps(state.nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256 counts = _mm256_cmp_ps(x, minus_inf, _CMP_GT_OQ);
    state.min = _mm256_min_ps(_mm256_blendv_ps(plus_inf, x, counts), state.min);
  }
  return max_of_4(_mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1)));
}

[[gnu::target("avx2")]] RowScan scan_avx2(const float* values, std::size_t size, float* block_max) {
  ScanAvx2 state{_mm256_set1_ps(kInfinity), _mm256_setzero_ps()};
  float max = -kInfinity;
  const std::size_t whole = size / kBlockSize;
  for (std::size_t b = 0; b < whole; ++b) {
    block_max[b] = scan_block_avx2(values + b * kBlockSize, state);
    max = std::max(max, block_max[b]);
  }
  if (size % kBlockSize != 0) {
    block_max[whole] = scan_block_avx2(PaddedTail(values, size).block, state);
    max = std::max(max, block_max[whole]);
  }
  const __m128 min = _mm_min_ps(_mm256_castps256_ps128(state.min), _mm256_extractf128_ps(state.min, 1));
  return {
      .max = max, .min = min_of_4(min), .has_nan = _mm256_movemask_ps(state.nan) != 0, .has_pos_inf = max == kInfinity};
}

[[gnu::target("avx2")]] inline __m256 sum_exp_lanes_avx2(const float* v, __m256 shift, __m256 scale) {
  __m256 e[4];
  for (std::size_t i = 0; i < 4; ++i) {
    e[i] = exp_avx2(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(v + 16 * i), shift), scale));
  }
  return _mm256_add_ps(_mm256_add_ps(e[0], e[1]), _mm256_add_ps(e[2], e[3]));
}

[[gnu::target("avx2")]] inline float sum_exp_block_avx2(const float* v, __m256 shift, __m256 scale) {
  const __m256 low = sum_exp_lanes_avx2(v, shift, scale);
  const __m256 high = sum_exp_lanes_avx2(v + 8, shift, scale);
  const __m256 sum = _mm256_add_ps(low, high);
  return sum_of_4(_mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1)));
}

[[gnu::target("avx2")]] void sum_exp_blocks_avx2(const float* values, std::size_t size, float shift, float scale,
                                                 float* sums) {
  const __m256 shifts = _mm256_set1_ps(shift);
  const __m256 scales = _mm256_set1_ps(scale);
  const std::size_t whole = size / kBlockSize;
  for (std::size_t b = 0; b < whole; ++b) {
    sums[b] = sum_exp_block_avx2(values + b * kBlockSize, shifts, scales);
  }
  if (size % kBlockSize != 0) {
    sums[whole] = sum_exp_block_avx2(PaddedTail(values, size).block, shifts, scales);
  }
}

[[gnu::target("avx2")]] void exp_values_avx2(const float* values, std::size_t size, float shift, float scale,
                                             float* out) {
  const __m256 shifts = _mm256_set1_ps(shift);
  const __m256 scales = _mm256_set1_ps(scale);
  const std::size_t whole = size / 8 * 8;
  for (std::size_t i = 0; i < whole; i += 8) {
    _mm256_storeu_ps(out + i, exp_avx2(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(values + i), shifts), scales)));
  }
  exp_values_plain(values + whole, size - whole, shift, scale, out + whole);
}

constexpr Kernels kAvx2{scan_avx2, sum_exp_blocks_avx2, exp_values_avx2};

// ---- AVX-512: a block is 4 registers ----

[[gnu::target("avx512f")]] inline __m512 exp_avx512(__m512 d) {
  const __mmask16 counts = _mm512_cmp_ps_mask(d, _mm512_set1_ps(kMinExponent), _CMP_GE_OQ);
  const __m512 x = _mm512_maskz_mov_ps(counts, d);
  const __m512 round = _mm512_set1_ps(kRound);
  const __m512 shifted = _mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(kLog2E)), round);
  const __m512 n = _mm512_sub_ps(shifted, round);
  const __m512 high = _mm512_sub_ps(x, _mm512_mul_ps(n, _mm512_set1_ps(kLn2High)));
  const __m512 r = _mm512_sub_ps(high, _mm512_mul_ps(n, _mm512_set1_ps(kLn2Low)));
  __m512 y = _mm512_set1_ps(kTaylor[0]);
  for (std::size_t i = 1; i < kTaylor.size(); ++i) {
    y = _mm512_add_ps(_mm512_mul_ps(y, r), _mm512_set1_ps(kTaylor[i]));
  }
  const __m512i exponent = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127 - kRoundBits));
  const __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  return _mm512_maskz_mul_ps(counts, y, power);
}

[[gnu::target("avx512f")]] inline __m256 upper_half(__m512 v) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
}

struct ScanAvx512 {
  __m512 min;
  __mmask16 nan;
};

[[gnu::target("avx512f")]] inline float scan_block_avx512(const float* v, ScanAvx512& state) {
  const __m512 minus_inf = _mm512_set1_ps(-kInfinity);
  __m512 max = minus_inf;
  for (std::size_t i = 0; i < kBlockSize; i += 16) {
    const __m512 x = _mm512_loadu_ps(v + i);
    max = _mm512_max_ps(x, max);  // the second operand where either is NaN
    state.nan = static_cast<__mmask16>(state.nan | _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q));
    const __mmask16 counts = _mm512_cmp_ps_mask(x, minus_inf, _CMP_GT_OQ);
    state.min = _mm512_mask_min_ps(state.min, counts, x, state.min);
  }
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(max), upper_half(max));
  return max_of_4(_mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

[[gnu::target("avx512f")]] RowScan scan_avx512(const float* values, std::size_t size, float* block_max) {
  ScanAvx512 state{_mm512_set1_ps(kInfinity), 0};
  float max = -kInfinity;
  const std::size_t whole = size / kBlockSize;
  for (std::size_t b = 0; b < whole; ++b) {
    block_max[b] = scan_block_avx512(values + b * kBlockSize, state);
    max = std::max(max, block_max[b]);
  }
  if (size % kBlockSize != 0) {
    block_max[whole] = scan_block_avx512(PaddedTail(values, size).block, state);
    max = std::max(max, block_max[whole]);
  }
  const __m256 half = _mm256_min_ps(_mm512_castps512_ps256(state.min), upper_half(state.min));
  const __m128 min = _mm_min_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  return {.max = max, .min = min_of_4(min), .has_nan = state.nan != 0, .has_pos_inf = max == kInfinity};
}

[[gnu::target("avx512f")]] inline float sum_exp_block_avx512(const float* v, __m512 shift, __m512 scale) {
  __m512 e[4];
  for (std::size_t i = 0; i < 4; ++i) {
    e[i] = exp_avx512(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(v + 16 * i), shift), scale));
  }
  const __m512 lanes = _mm512_add_ps(_mm512_add_ps(e[0], e[1]), _mm512_add_ps(e[2], e[3]));
  const __m256 sum = _mm256_add_ps(_mm512_castps512_ps256(lanes), upper_half(lanes));
  return sum_of_4(_mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1)));
}

[[gnu::target("avx512f")]] void sum_exp_blocks_avx512(const float* values, std::size_t size, float shift, float scale,
                                                      float* sums) {
  const __m512 shifts = _mm512_set1_ps(shift);
  const __m512 scales = _mm512_set1_ps(scale);
  const std::size_t whole = size / kBlockSize;
  for (std::size_t b = 0; b < whole; ++b) {
    sums[b] = sum_exp_block_avx512(values + b * kBlockSize, shifts, scales);
  }
  if (size % kBlockSize != 0) {
    sums[whole] = sum_exp_block_avx512(PaddedTail(values, size).block, shifts, scales);
  }
}

[[gnu::target("avx512f")]] void exp_values_avx512(const float* values, std::size_t size, float shift, float scale,
                                                  float* out) {
  const __m512 shifts = _mm512_set1_ps(shift);
  const __m512 scales = _mm512_set1_ps(scale);
  const std::size_t whole = size / 16 * 16;
  for (std::size_t i = 0; i < whole; i += 16) {
    _mm512_storeu_ps(out + i, exp_avx512(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(values + i), shifts), scales)));
  }
  exp_values_plain(values + whole, size - whole, shift, scale, out + whole);
}

constexpr Kernels kAvx512{scan_avx512, sum_exp_blocks_avx512, exp_values_avx512};

#endif  // __x86_64__

/// First id from `start` on whose logit is `value`. Requires: there is one.
TokenId first_at(std::span<const float> logits, std::size_t start, float value) {
  while (logits[start] != value) ++start;
  return static_cast<TokenId>(start);
}

}  // namespace

float exp_of(float x) {
  const bool counts = x >= kMinExponent;  // false for NaN
  const float d = counts ? x : 0.0F;
  const float shifted = d * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (d - n * kLn2High) - n * kLn2Low;
  float y = kTaylor[0];
  for (std::size_t i = 1; i < kTaylor.size(); ++i) y = y * r + kTaylor[i];
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - kRoundBits + 127;
  const float power = std::bit_cast<float>(exponent << 23);
  return counts ? y * power : 0.0F;
}

double sum_of_blocks(std::span<const float> sums) {
  double total = 0.0;
  for (const float sum : sums) total += static_cast<double>(sum);
  return total;
}

bool is_supported(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return true;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") != 0;
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") != 0;
#else
    case Isa::kAvx2:
    case Isa::kAvx512:
      return false;
#endif
  }
  return false;
}

Isa best_isa_within(std::string_view limit) {
  const bool is_plain = limit == "plain" || limit.starts_with("neon");
  const bool is_narrow = is_plain || limit == "avx2" || limit == "avxvnni";
  if (!is_narrow && is_supported(Isa::kAvx512)) return Isa::kAvx512;
  if (!is_plain && is_supported(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kPlain;
}

Isa best_isa() {
  static const Isa best = [] {
    const char* const limit = std::getenv("ONNX_GENAI_CPU_ISA");
    return best_isa_within(limit == nullptr ? "" : limit);
  }();
  return best;
}

const Kernels& kernels(Isa isa) {
  check(is_supported(isa), "kernels of an instruction set that this CPU lacks");
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kAvx512;
  if (isa == Isa::kAvx2) return kAvx2;
#endif
  return kPlain;
}

RowScan scan_row(std::span<const float> logits) {
  constexpr std::size_t kChunkBlocks = 64;
  constexpr std::size_t kChunk = kChunkBlocks * kBlockSize;
  const Kernels& kernel = kernels(best_isa());
  RowScan row{.max = -kInfinity, .min = kInfinity};
  std::size_t best_block = 0;
  for (std::size_t start = 0; start < logits.size(); start += kChunk) {
    const std::span<const float> chunk = logits.subspan(start, std::min(kChunk, logits.size() - start));
    std::array<float, kChunkBlocks> block_max;
    const RowScan part = kernel.scan(chunk.data(), chunk.size(), block_max.data());
    row.has_nan |= part.has_nan;
    row.min = std::min(row.min, part.min);
    if (part.max > row.max) {
      row.max = part.max;
      const auto place = std::ranges::find(block_max, part.max);
      best_block = start / kBlockSize + static_cast<std::size_t>(place - block_max.begin());
    }
  }
  row.has_pos_inf = row.max == kInfinity;
  if (row.max > -kInfinity) row.argmax = first_at(logits, best_block * kBlockSize, row.max);
  return row;
}

}  // namespace genai::sampling
