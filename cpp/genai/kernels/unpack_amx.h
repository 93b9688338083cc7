#pragma once

#include "genai/kernels/nbits_weights.h"
#include "genai/kernels/tiles_amx.h"
#include "genai/kernels/unrolled.h"
#include "genai/kernels/vec_avx512.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

// How packed weights become tiles of bfloat16. Included after the pragma of the instruction set; local to the file.
namespace genai::kernels {
namespace {

/// Codes of 16 columns and their block to weights. A code that lies in the fraction of a float with the exponent of
/// 2^(23 - place), its lowest bit at `place`, makes that float 2^(23 - place) + code. This times the scale, and a
/// shift, is the weight, exactly: a scale has 11 bits, and the shift 24 at most from place 11 on.
template <int kBits>
struct Affine {
  static constexpr int kPlaces = kBits == 4 ? 3 : 1;
  static constexpr int place(int index) { return kBits == 4 ? 11 + 4 * index : 15; }

  __m512 scale;
  __m512 shifts[kPlaces];

  /// `zeros`: zero points less 2^(kBits - 1), or nullptr when they are all that.
  static Affine of(const Half* scales, const std::int8_t* zeros) {
    Affine affine;
    affine.scale = VecAvx512::load(scales).v;
    __m512 zero = _mm512_set1_ps(1 << (kBits - 1));
    if (zeros != nullptr) zero = _mm512_add_ps(zero, VecAvx512::load(zeros).v);
    const __m512 minus = _mm512_sub_ps(_mm512_setzero_ps(), affine.scale);
    unrolled<kPlaces>([&](auto i) __attribute__((always_inline)) {
      const __m512 base = _mm512_set1_ps(static_cast<float>(1 << (23 - place(i))));
      affine.shifts[i] = _mm512_mul_ps(_mm512_add_ps(zero, base), minus);
    });
    return affine;
  }

  /// Weights of the codes at place(kIndex) of each lane.
  template <int kIndex>
  __m512 weights(__m512i line) const {
    constexpr int kPlace = place(kIndex);
    constexpr int kAndOr = 0xEA;  // (a & b) | c
    const __m512i code = _mm512_ternarylogic_epi32(line, _mm512_set1_epi32(((1 << kBits) - 1) << kPlace),
                                                   _mm512_set1_epi32((127 + 23 - kPlace) << 23), kAndOr);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(code), scale, shifts[kIndex]);
  }
};

/// 16 columns of a panel, chunk after chunk of depth.
template <int kBits>
class UnpackedColumns {
 public:
  /// From depth `start` on, the begin of a unit. `half`: which 16 columns.
  UnpackedColumns(const PanelView& panel, int half, std::int64_t start)
      : chunks_(panel.unit_depth / kChunkDepth),
        unit_bytes_(panel.unit_bytes),
        lines_offset_(half * kHalfBytes),
        column_(half * kLanes),
        second_(panel.scales_per_unit == 2 ? kPanelColumns : 0),
        zeros_step_(panel.scales_per_unit * kPanelColumns) {
    const std::int64_t unit = start / panel.unit_depth;
    next_ = panel.data + static_cast<std::size_t>(unit) * unit_bytes_;
    ahead_ = (kAheadBytes + unit_bytes_ - 1) / unit_bytes_ * unit_bytes_;
    if (panel.zero_points != nullptr) zeros_ = panel.zero_points + unit * zeros_step_ + column_;
  }

  /// Stores the next chunk as a tile.
  [[gnu::always_inline]] void unpack(std::byte* to) {
    if (left_ == 0) open_unit();
    unrolled<static_cast<int>(kHalfBytes / Tiles::kLine)>(
        [&](auto j) __attribute__((always_inline)) { _mm_prefetch(lines_ + ahead_ + j * Tiles::kLine, _MM_HINT_T0); });
    unpack_tile(lines_, first_part_, second_part_, to);
    lines_ += 2 * kHalfBytes;
    --left_;
  }

 private:
  static constexpr std::ptrdiff_t kHalfBytes = kChunkDepth * kLanes * kBits / 8;  ///< of a chunk
  /// How far ahead of the codes that are unpacked memory is fetched; rounded up to units.
  static constexpr std::size_t kAheadBytes = 2 << 10;

  [[gnu::always_inline]] void open_unit() {
    lines_ = next_ + lines_offset_;
    const std::byte* const after = next_ + chunks_ * 2 * kHalfBytes;
    _mm_prefetch(after + ahead_, _MM_HINT_T0);
    const auto* const scales = reinterpret_cast<const Half*>(after) + column_;
    first_part_ = Affine<kBits>::of(scales, zeros_);
    second_part_ = first_part_;
    // Blocks of 16 are two to a chunk.
    if (second_ != 0) {
      second_part_ = Affine<kBits>::of(scales + second_, zeros_ == nullptr ? nullptr : zeros_ + second_);
    }
    if (zeros_ != nullptr) zeros_ += zeros_step_;
    next_ += unit_bytes_;
    left_ = chunks_;
  }

  /// Stores pairs of depth, one for each column. Halves are rounded away from 0: that takes two thirds of the time of
  /// Tiles::store_pairs(), whose conversion and shuffle both wait for one port.
  [[gnu::always_inline]] static void store_weights(__m512 even, __m512 odd, void* to) {
    constexpr __mmask32 kOdd = 0xAAAAAAAAU;
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(kOdd, low, high));
  }

  [[gnu::always_inline]] static void unpack_tile(const std::byte* lines, const Affine<kBits>& first,
                                                 const Affine<kBits>& second, std::byte* to) {
    constexpr std::ptrdiff_t kLine = Tiles::kLine;
    if constexpr (kBits == 4) {
      unrolled<4>([&](auto j) __attribute__((always_inline)) {
        const __m512i line = _mm512_loadu_si512(lines + j * kLine);
        // Each brings up to three of a lane's eight codes to places 11, 15 and 19.
        const __m512i low = _mm512_slli_epi32(line, 11);
        const __m512i middle = _mm512_srli_epi32(line, 1);
        const __m512i high = _mm512_srli_epi32(line, 13);
        std::byte* const upper = to + 2 * j * kLine;
        std::byte* const lower = upper + 8 * kLine;
        store_weights(first.template weights<0>(low), first.template weights<2>(low), upper);
        store_weights(first.template weights<1>(middle), first.template weights<0>(high), upper + kLine);
        store_weights(second.template weights<1>(low), second.template weights<0>(middle), lower);
        store_weights(second.template weights<2>(middle), second.template weights<1>(high), lower + kLine);
      });
    } else {
      unrolled<8>([&](auto j) __attribute__((always_inline)) {
        const __m512i line = _mm512_loadu_si512(lines + j * kLine);
        const Affine<kBits>& affine = j < 4 ? first : second;
        std::byte* const at = to + 2 * j * kLine;
        store_weights(affine.template weights<0>(_mm512_slli_epi32(line, 15)),
                      affine.template weights<0>(_mm512_slli_epi32(line, 7)), at);
        store_weights(affine.template weights<0>(_mm512_srli_epi32(line, 1)),
                      affine.template weights<0>(_mm512_srli_epi32(line, 9)), at + kLine);
      });
    }
  }

  std::int64_t chunks_;  ///< of a unit
  std::size_t unit_bytes_;
  std::ptrdiff_t lines_offset_;
  int column_;
  std::int64_t second_;  ///< from the scales of a unit's first block to those of its second one, or 0
  std::int64_t zeros_step_;
  std::size_t ahead_;

  const std::byte* next_;  ///< unit
  const std::int8_t* zeros_ = nullptr;
  const std::byte* lines_ = nullptr;
  std::int64_t left_ = 0;  ///< chunks of the unit
  Affine<kBits> first_part_;
  Affine<kBits> second_part_;
};

}  // namespace
}  // namespace genai::kernels
