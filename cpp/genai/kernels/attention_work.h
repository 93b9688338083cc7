#pragma once

#include "genai/kernels/attention.h"
#include "genai/kernels/paged_inputs.h"
#include "genai/kernels/work_pool.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace genai::kernels {

/// 16 floats, aligned like a cache line.
struct alignas(64) FloatLine {
  float values[16];
};

/// A tile of query rows and the ranges of keys that it sees.
struct AttentionItem {
  QueryTile tile;
  int first_range = 0;
  int num_ranges = 0;
  bool is_split = false;        ///< several pieces share it: each range's partial result is kept
  std::size_t partials_at = 0;  ///< of the first range, in floats from the start of the partials
  int open_pieces = 0;          ///< pieces not yet done, counted down by all threads
};

/// What one thread does in one go: ranges of one item.
struct AttentionPiece {
  std::size_t item = 0;
  int first_range = 0;
  int num_ranges = 0;
};

/// A new token's place.
struct TokenPlace {
  std::int64_t position = 0;
  std::int64_t slot = 0;  ///< -1 = its KV is not kept
};

/// The work of one call: what is to be done, cut into pieces, and the memory for it. Reused from call to call, so that
/// it allocates only to grow. One thread, except where `open_pieces` and the partials say so.
class AttentionWork {
 public:
  /// Cuts the call into pieces for `num_threads` threads. The cut decides who computes what and not what comes out.
  void plan(const PagedCall& call, int num_threads);

  const std::vector<TokenPlace>& tokens() const { return tokens_; }
  std::vector<AttentionItem>& items() { return items_; }
  const std::vector<AttentionPiece>& pieces() const { return pieces_; }
  /// The first of them, which are not bound by memory.
  std::size_t tall_pieces() const { return starts_.front(); }
  /// The rest in ranges of equal work: first pieces, and the end of all.
  const std::vector<std::size_t>& starts() const { return starts_; }
  /// Threads that are worth waking up; at most num_threads.
  int threads() const { return threads_; }

  /// Partial result of a split item's range.
  Partial partial(const AttentionItem& item, int range);

  /// Working memory of thread `thread`, 0 <= thread < threads().
  struct Buffers {
    float* packed;
    float* scores;
    float* scratch;
    Partial total;
    Partial next;
  };
  Buffers buffers(int thread);

 private:
  void plan_tokens(const PagedCall& call);
  void plan_items(const PagedCall& call, int num_threads);
  void add_items(const QueryTile& tile, std::int64_t rows, std::int64_t most_rows);
  void plan_pieces();
  std::size_t cut_item(std::size_t index, double target, std::size_t partials);
  void plan_starts(std::size_t tall);
  void size_buffers();

  std::vector<TokenPlace> tokens_;
  std::vector<AttentionItem> items_;
  std::vector<AttentionPiece> pieces_;
  std::vector<std::size_t> starts_;
  std::vector<FloatLine> partials_;
  std::vector<FloatLine> buffers_;
  AttentionShape shape_;
  bool has_prompts_ = false;
  struct Lines {
    std::size_t packed;
    std::size_t scores;
    std::size_t scratch;
    std::size_t partial;

    std::size_t all() const { return packed + scores + scratch + 2 * partial; }
  };
  Lines each_{};     ///< of a thread's buffers
  double cost_ = 0;  ///< of all items
  int threads_ = 1;
};

using AttentionWorkPool = WorkPool<AttentionWork>;

}  // namespace genai::kernels
