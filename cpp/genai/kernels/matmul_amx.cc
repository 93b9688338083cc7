#include "genai/kernels/matmul.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)

#include <immintrin.h>

// Only what follows is compiled for the instruction set: a function of another header must not be.
#if defined(__clang__)
#pragma clang attribute push(                                                                                 \
    __attribute__((                                                                                           \
        target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
// GCC 12 sees uninitialised reads in its own AVX-512 header (PR 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "genai/kernels/dot_avx512.h"
#include "genai/kernels/store_amx.h"
#include "genai/kernels/tiles_amx.h"
#include "genai/kernels/unpack_amx.h"

namespace genai::kernels {
namespace {

/// Few rows as with AVX-512 VNNI; more in tiles of bfloat16, which keep more of the activations than int8 does and need
/// no scaling of sums.
struct MatMulTiles {
  static constexpr std::int64_t kLine = 64;  ///< bytes
  static constexpr int kHalves = 2;          ///< of a panel
  static constexpr int kTileSide = 16;
  static constexpr std::int64_t kTileDepth = 32;
  static constexpr std::int64_t kTileBytes = 1024;

  static void load_row_bf16(const float* x, const PanelView& shape, std::int64_t row, const Bf16Rows& rows) {
    const std::int64_t slab = Bf16Rows::slab_depth(shape);
    const std::int64_t in_group = row % Bf16Rows::kGroup;
    for (std::int64_t start = 0; start < shape.depth; start += slab) {
      const std::int64_t depth = std::min(slab, shape.depth - start);
      std::uint16_t* to = rows.group(start, depth, row - in_group) + in_group * kTileDepth;
      for (std::int64_t i = start; i < start + depth; i += kTileDepth, to += Bf16Rows::kGroup * kTileDepth) {
        Tiles::store_row(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16), to);
      }
    }
  }

  /// The first or the second 16 of the columns, from depth `start` on.
  template <int kBits>
  static UnpackedColumns<kBits> half_of(const TileColumns& columns, int index, std::int64_t start) {
    const bool gated = columns.gate.data != nullptr;
    return UnpackedColumns<kBits>(gated && index == 0 ? columns.gate : columns.panel, gated ? columns.half : index,
                                  start);
  }

  /// Weights as tiles: to[depth / 32][2 halves][16 pairs of depth][16 columns][2].
  template <int kBits>
  static void unpack(const TileColumns& columns, std::int64_t start, std::int64_t depth, std::byte* to) {
    UnpackedColumns<kBits> first = half_of<kBits>(columns, 0, start);
    UnpackedColumns<kBits> second = half_of<kBits>(columns, 1, start);
    for (std::int64_t k = 0; k < depth; k += kTileDepth, to += kHalves * kTileBytes) {
      first.unpack(to);
      second.unpack(to + kTileBytes);
    }
  }

  /// Packed weights that are needed next: they come from memory while tiles are multiplied.
  struct Ahead {
    std::array<std::span<const std::byte>, 2> streams;  ///< what is left of them
    std::int64_t lines = 0;                             ///< to fetch in a step

    static std::span<const std::byte> slab(const PanelView& w, std::int64_t start, std::int64_t depth) {
      if (w.data == nullptr) return {};
      return {w.data + static_cast<std::size_t>(start / w.unit_depth) * w.unit_bytes,
              static_cast<std::size_t>(depth / w.unit_depth) * w.unit_bytes};
    }
    void spread(std::int64_t steps) {
      const auto bytes = static_cast<std::int64_t>(streams[0].size() + streams[1].size());
      lines = (bytes + kLine * steps - 1) / (kLine * steps);
    }
    void fetch() {
      for (std::int64_t i = 0; i < lines; ++i) {
        if (streams[0].empty()) streams[0] = std::exchange(streams[1], {});
        if (streams[0].empty()) return;
        _mm_prefetch(streams[0].data(), _MM_HINT_T1);
        streams[0] = streams[0].subspan(std::min<std::size_t>(kLine, streams[0].size()));
      }
    }
  };

  /// to[kRows][32] = from[kRows][32], or 0 if kFirst, and `tiles` of depth. Tiles 0..3 are sums, 4 and 5 rows, 6 and 7
  /// columns. What was computed before is stored meanwhile.
  template <int kRows, bool kFirst, typename Store>
  static void add_rows(const std::uint16_t* x, const std::byte* weights, std::int64_t tiles, const float* from,
                       float* to, const Strip& before, const Store& store, Ahead& ahead) {
    constexpr std::int64_t kStride = kPanelColumns * sizeof(float);
    constexpr std::int64_t kBelow = kTileSide * kPanelColumns;
    constexpr bool kTwo = kRows == 2 * kTileSide;
    if constexpr (kFirst) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, from, kStride);
      _tile_loadd(1, from + kLanes, kStride);
      if constexpr (kTwo) {
        _tile_loadd(2, from + kBelow, kStride);
        _tile_loadd(3, from + kBelow + kLanes, kStride);
      }
    }
    std::int64_t stored = 0;
    for (std::int64_t t = 0; t < tiles; ++t, x += Bf16Rows::kGroup * kTileDepth, weights += 2 * kTileBytes) {
      // Rows pass by the first-level cache, so that the weights stay in it.
      _tile_stream_loadd(4, x, kLine);
      _tile_loadd(6, weights, kLine);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, weights + kTileBytes, kLine);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kTwo) {
        _tile_stream_loadd(5, x + kTileSide * kTileDepth, kLine);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      const std::int64_t next = before.rows * (t + 1) / tiles;
      store.store(before, stored, next);
      stored = next;
      ahead.fetch();
    }
    _tile_stored(0, to, kStride);
    _tile_stored(1, to + kLanes, kStride);
    if constexpr (kTwo) {
      _tile_stored(2, to + kBelow, kStride);
      _tile_stored(3, to + kBelow + kLanes, kStride);
    }
    Tiles::barrier();
  }

  /// A slab of depth of some rows.
  struct Slab {
    const Bf16Rows& rows;
    std::int64_t first;
    std::span<const std::int64_t> places;
    std::int64_t start;
    std::int64_t depth;
    std::byte* weights;  ///< unpacked, of all columns; at the end of kMatMulScratchBytes are two blocks of results
  };
  static constexpr std::int64_t kBlock = Bf16Rows::kGroup * kPanelColumns;
  static constexpr std::size_t kBlocksBytes = 2 * kBlock * sizeof(float);

  /// Multiplies a slab with the unpacked weights. sums[rows][32] has those of the slabs before, unless kFirst, and gets
  /// them if nothing is to be stored.
  template <bool kFirst, typename Store>
  static void multiply_slab(const Slab& slab, float* sums, const Store& store, Ahead ahead) {
    constexpr bool kLast = !std::is_same_v<Store, StoresNothing>;
    auto* const blocks = reinterpret_cast<float*>(slab.weights + kMatMulScratchBytes - kBlocksBytes);
    const std::int64_t tiles = slab.depth / kTileDepth;
    const auto count = static_cast<std::int64_t>(slab.places.size());
    ahead.spread((count + Bf16Rows::kGroup - 1) / Bf16Rows::kGroup * tiles);
    Strip before;
    for (std::int64_t row = 0; row < count; row += Bf16Rows::kGroup) {
      const std::uint16_t* const x = slab.rows.group(slab.start, slab.depth, slab.first + row);
      const float* const from = sums + row * kPanelColumns;
      float* const to = kLast ? blocks + row / Bf16Rows::kGroup % 2 * kBlock : sums + row * kPanelColumns;
      const std::int64_t rows = std::min(count - row, Bf16Rows::kGroup);
      if (rows > kTileSide) {
        add_rows<2 * kTileSide, kFirst>(x, slab.weights, tiles, from, to, before, store, ahead);
      } else {
        add_rows<kTileSide, kFirst>(x, slab.weights, tiles, from, to, before, store, ahead);
      }
      if constexpr (kLast) before = {to, slab.places.data() + row, rows, slab.first + row};
    }
    store.store(before, 0, before.rows);
    Tiles::barrier();
  }

  template <bool kFirst>
  static void end_slab(const Slab& slab, const TileColumns& columns, float* sums, const Ahead& ahead) {
    const bool half = columns.output.kind == ElementKind::kFloat16;
    if (columns.output.tiles != nullptr) return multiply_slab<kFirst>(slab, sums, TileStorer{columns.output}, ahead);
    if (columns.gate.data != nullptr) {
      if (half) return multiply_slab<kFirst>(slab, sums, Storer<Half, true>{columns.output}, ahead);
      return multiply_slab<kFirst>(slab, sums, Storer<float, true>{columns.output}, ahead);
    }
    if (half) return multiply_slab<kFirst>(slab, sums, Storer<Half, false>{columns.output}, ahead);
    multiply_slab<kFirst>(slab, sums, Storer<float, false>{columns.output}, ahead);
  }

  static void add_slab(const Slab& slab, const TileColumns& columns, float* sums, const Ahead& ahead) {
    if (columns.panel.bits == 4) {
      unpack<4>(columns, slab.start, slab.depth, slab.weights);
    } else {
      unpack<8>(columns, slab.start, slab.depth, slab.weights);
    }
    Tiles::barrier();
    const bool last = slab.start + slab.depth == columns.panel.depth;
    if (slab.start == 0) {
      last ? end_slab<true>(slab, columns, sums, ahead) : multiply_slab<true>(slab, sums, StoresNothing(), ahead);
    } else {
      last ? end_slab<false>(slab, columns, sums, ahead) : multiply_slab<false>(slab, sums, StoresNothing(), ahead);
    }
  }

  // ---- few rows ----

  /// So many rows meet each tile of weights while the next ones are unpacked.
  static constexpr std::int64_t kFewRows = 3 * kTileSide;
  static constexpr std::int64_t kChunkBytes = kHalves * kTileBytes;

  /// Rows, chunk after chunk of depth.
  struct FewRows {
    const Bf16Rows& rows;
    std::int64_t first;
    std::int64_t depth;
    std::int64_t slab;
    std::int64_t at = 0;
    std::int64_t slab_end = 0;
    std::int64_t below = 0;  ///< from a group of rows to the next
    const std::uint16_t* x = nullptr;

    const std::uint16_t* next() {
      if (at == slab_end) {
        const std::int64_t length = std::min(slab, depth - at);
        x = rows.group(at, length, first);
        below = length * Bf16Rows::kGroup;
        slab_end += length;
      }
      at += kTileDepth;
      return std::exchange(x, x + kTileDepth * Bf16Rows::kGroup);
    }
  };

  template <typename Store>
  static void store_rows(const PanelOutput& output, const Strip& strip) {
    Store{output}.store(strip, 0, strip.rows);
  }
  using StoreRows = void (*)(const PanelOutput&, const Strip&);
  static StoreRows find_store(const TileColumns& columns) {
    const bool half = columns.output.kind == ElementKind::kFloat16;
    if (columns.output.tiles != nullptr) return &store_rows<TileStorer>;
    if (columns.gate.data != nullptr) return half ? &store_rows<Storer<Half, true>> : &store_rows<Storer<float, true>>;
    return half ? &store_rows<Storer<Half, false>> : &store_rows<Storer<float, false>>;
  }

  /// Adds a chunk of depth to the sums of kSides * 16 rows and the columns of a half: tiles 2 * side + kHalf. Tiles of
  /// rows are loaded for the first half and used for the second one, as far as there are tiles.
  template <int kSides, int kHalf>
  [[gnu::always_inline]] static void add_chunk(const std::uint16_t* x, std::int64_t below, const std::byte* weights) {
    constexpr std::int64_t kSide = kTileSide * kTileDepth;
    if constexpr (kSides < 3 && kHalf == 0) {
      _tile_loadd(4, x, kLine);
      _tile_loadd(6, weights, kLine);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kSides == 2) {
        _tile_loadd(5, x + kSide, kLine);
        _tile_dpbf16ps(2, 5, 6);
      }
    } else if constexpr (kSides < 3) {
      _tile_loadd(7, weights, kLine);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kSides == 2) _tile_dpbf16ps(3, 5, 7);
    } else if constexpr (kHalf == 0) {
      _tile_loadd(7, weights, kLine);
      _tile_loadd(6, x, kLine);
      _tile_dpbf16ps(0, 6, 7);
      _tile_loadd(6, x + kSide, kLine);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(6, x + below, kLine);
      _tile_dpbf16ps(4, 6, 7);
    } else {
      _tile_loadd(7, weights, kLine);
      _tile_dpbf16ps(5, 6, 7);
      _tile_loadd(6, x, kLine);
      _tile_dpbf16ps(1, 6, 7);
      _tile_loadd(6, x + kSide, kLine);
      _tile_dpbf16ps(3, 6, 7);
    }
  }

  template <int kSides>
  static void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kSides > 1) {
      _tile_zero(2);
      _tile_zero(3);
    }
    if constexpr (kSides > 2) {
      _tile_zero(4);
      _tile_zero(5);
    }
  }

  template <int kSides>
  static void keep_sums(float* block) {
    constexpr std::int64_t kStride = kPanelColumns * sizeof(float);
    constexpr std::int64_t kBelow = kTileSide * kPanelColumns;
    _tile_stored(0, block, kStride);
    _tile_stored(1, block + kLanes, kStride);
    if constexpr (kSides > 1) {
      _tile_stored(2, block + kBelow, kStride);
      _tile_stored(3, block + kBelow + kLanes, kStride);
    }
    if constexpr (kSides > 2) {
      _tile_stored(4, block + 2 * kBelow, kStride);
      _tile_stored(5, block + 2 * kBelow + kLanes, kStride);
    }
    Tiles::barrier();
  }

  /// As multiply_bf16(), of up to kSides * 16 rows. A chunk is multiplied while the next one is unpacked.
  template <int kSides, int kBits>
  static void multiply_few(std::span<const TileColumns> columns, const Bf16Rows& rows, std::int64_t first,
                           std::span<const std::int64_t> places, std::byte* scratch) {
    const PanelView& shape = columns.front().panel;
    const std::int64_t chunks = shape.depth / kTileDepth;
    const std::int64_t count = std::ssize(places);
    const StoreRows store = find_store(columns.front());
    std::byte* weights = scratch;
    std::byte* before = scratch + kChunkBytes;
    auto* const block = reinterpret_cast<float*>(scratch + 2 * kChunkBytes);
    for (const TileColumns& some : columns) {
      UnpackedColumns<kBits> low = half_of<kBits>(some, 0, 0);
      UnpackedColumns<kBits> high = half_of<kBits>(some, 1, 0);
      FewRows x{rows, first, shape.depth, Bf16Rows::slab_depth(shape)};
      clear_sums<kSides>();
      low.unpack(weights);
      high.unpack(weights + kTileBytes);
      for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
        std::swap(weights, before);
        const std::uint16_t* const from = x.next();
        low.unpack(weights);
        Tiles::barrier();
        add_chunk<kSides, 0>(from, x.below, before);
        high.unpack(weights + kTileBytes);
        Tiles::barrier();
        add_chunk<kSides, 1>(from, x.below, before + kTileBytes);
      }
      Tiles::barrier();
      const std::uint16_t* const from = x.next();
      add_chunk<kSides, 0>(from, x.below, weights);
      add_chunk<kSides, 1>(from, x.below, weights + kTileBytes);
      keep_sums<kSides>(block);
      for (std::int64_t row = 0; row < count; row += Bf16Rows::kGroup) {
        const std::int64_t here = std::min(count - row, Bf16Rows::kGroup);
        store(some.output, {block + row * kPanelColumns, places.data() + row, here, first + row});
      }
    }
  }

  template <int kSides>
  static void multiply_few_bits(std::span<const TileColumns> columns, const Bf16Rows& rows, std::int64_t first,
                                std::span<const std::int64_t> places, std::byte* scratch) {
    if (columns.front().panel.bits == 4) return multiply_few<kSides, 4>(columns, rows, first, places, scratch);
    multiply_few<kSides, 8>(columns, rows, first, places, scratch);
  }

  // ---- any number of rows ----

  /// Slab after slab, so that the rows of a slab stay in the second-level cache while all columns pass.
  static void multiply_bf16(std::span<const TileColumns> columns, const Bf16Rows& rows, std::int64_t first,
                            std::span<const std::int64_t> places, float* sums, std::byte* scratch) {
    const PanelView& shape = columns.front().panel;
    const std::int64_t most = Bf16Rows::slab_depth(shape);
    const std::int64_t groups = (std::ssize(places) + Bf16Rows::kGroup - 1) / Bf16Rows::kGroup;
    Tiles::configure();
    if (std::ssize(places) <= kFewRows) {
      if (places.size() <= kTileSide) {
        multiply_few_bits<1>(columns, rows, first, places, scratch);
      } else if (places.size() <= 2 * kTileSide) {
        multiply_few_bits<2>(columns, rows, first, places, scratch);
      } else {
        multiply_few_bits<3>(columns, rows, first, places, scratch);
      }
      return Tiles::release();
    }
    for (std::int64_t start = 0; start < shape.depth; start += most) {
      const Slab slab{rows, first, places, start, std::min(most, shape.depth - start), scratch};
      float* to = sums;
      for (std::size_t i = 0; i < columns.size(); ++i, to += groups * kBlock) {
        const bool wraps = i + 1 == columns.size();
        const TileColumns& next = columns[wraps ? 0 : i + 1];
        const std::int64_t next_start = wraps ? start + slab.depth : start;
        const std::int64_t next_depth = std::min(most, shape.depth - next_start);
        Ahead ahead;
        ahead.streams = {Ahead::slab(next.panel, next_start, next_depth),
                         Ahead::slab(next.gate, next_start, next_depth)};
        add_slab(slab, columns[i], to, ahead);
      }
    }
    Tiles::release();
  }

  static constexpr Bf16Kernels kTable = {&load_row_bf16, &multiply_bf16};
};

}  // namespace

const Bf16Kernels kBf16Amx = MatMulTiles::kTable;

}  // namespace genai::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
