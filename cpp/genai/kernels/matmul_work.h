#pragma once

#include "genai/kernels/matmul.h"
#include "genai/kernels/work_pool.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace genai::kernels {

/// Rows that are multiplied with a panel in one go.
constexpr std::int64_t kRowBlock = 512;
/// Panels that are computed in one go in tiles: with that many sums the rows are seldom fetched anew.
constexpr std::int64_t kTilePanels = 8;

/// Memory of one call of MatMulNBits. Reused from call to call, so that it allocates only to grow.
class MatMulWork {
 public:
  /// The rows of [0, rows) whose prompt_rows are not 0, or those others; without prompt_rows none are of prompts. Stays
  /// valid until the next call.
  std::span<const std::int64_t> choose(const std::int32_t* prompt_rows, std::int64_t rows, bool of_prompts);
  /// Room for `rows` rows in int8 and their scales; stays valid until the next call.
  QuantizedRows quantized(std::int64_t rows, const PanelView& shape);
  /// The same in bfloat16.
  Bf16Rows bf16(std::int64_t rows, const PanelView& shape);
  /// Room for rows[count][stride] in float32.
  float* floats(std::int64_t count, std::int64_t stride);

  /// What a thread multiplies in one go in tiles.
  struct Piece {
    std::int64_t first_row;
    std::int64_t rows;   ///< at most kRowBlock
    std::int64_t first;  ///< columns for tiles
    std::int64_t end;    ///< at most kTilePanels more
  };
  /// Cuts rows times columns, for weights of this shape: the less is left the smaller the pieces, so that threads end
  /// together. Stays valid until the next call.
  std::span<const Piece> cut(std::int64_t rows, std::int64_t columns, const PanelView& shape, int threads);

  /// Working memory of a thread.
  struct Thread {
    std::byte* scratch;  ///< kMatMulScratchBytes
    float* results;      ///< [as many as were reserved][kRowBlock][32]
    float* row;          ///< [depth]
  };
  /// Makes room for that many threads, with rows of `depth` and `results` panels of results, before they call thread().
  void reserve_threads(int count, std::int64_t depth, std::int64_t results);
  Thread thread(int index);

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static std::byte* grow(std::vector<Line>& lines, std::size_t bytes);

  std::vector<std::int64_t> chosen_;
  std::vector<Piece> pieces_;
  std::vector<Line> codes_;
  std::vector<Line> floats_;
  std::vector<std::unique_ptr<std::vector<Line>>> threads_;
  std::size_t row_floats_ = 0;
};

using MatMulWorkPool = WorkPool<MatMulWork>;

}  // namespace genai::kernels
