#pragma once

#include "genai/base/dims.h"
#include "genai/base/dtype.h"
#include "genai/core/kv.h"
#include "genai/core/model_spec.h"
#include "genai/runner/cold_tier.h"
#include "genai/runner/options.h"
#include "genai/tensor/buffer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace genai::runner {

/// The KV bytes of a paged model in all tiers. Knows places, not what they are for. One thread.
///
///     hot    a tensor for each layer's keys, values and scales; blocks are its first axis
///     warm   block after block; a block is its parts of all tensors, in the order of tensors()
///     cold   the same, in a file
///
/// Memory is reserved at once; what was never written to takes none.
class KvStorage {
 public:
  /// A graph input of the hot tier.
  struct Tensor {
    std::string name;
    DType dtype = DType::kFloat32;
    Dims dims;                    ///< dims[0]: hot blocks
    std::size_t block_bytes = 0;  ///< of one block
    tensor::Buffer buffer;
    std::size_t joined_bytes = 0;  ///< of the buffer, from its begin on, that join_pages() was through with
    std::string present;  ///< graph output that is `buffer` after a Run; empty where the Run writes `buffer` itself
    tensor::Buffer next;  ///< for `present`
  };

  /// hot_bytes 0 = 1 GiB. The hot tier gets at least one block and no tensor of 2^31 elements or more. Throws
  /// kResourceExhausted, and what open_cold_file() and ColdTier throw. Requires: layers, block_size >= 1.
  KvStorage(const std::vector<PagedLayer>& layers, int block_size, const KvMemory& memory);
  /// As above, with the file of the cold tier; null when memory.cold_bytes is 0.
  KvStorage(const std::vector<PagedLayer>& layers, int block_size, const KvMemory& memory,
            std::unique_ptr<ColdFile> cold_file);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Makes what a Run wrote to each `next` the content of the hot tier. All tensors have one, or none.
  void take_presents();
  /// Bytes of a block of these layers.
  static std::int64_t block_bytes_of(const std::vector<PagedLayer>& layers, int block_size);
  std::int64_t num_blocks(KvTier tier) const;
  std::int64_t block_bytes() const { return static_cast<std::int64_t>(block_bytes_); }

  /// Puts memory of the hot tier that no Run replaces and whose blocks are below `num_written`, all written to, on
  /// large pages, which attention reads at twice the speed; other memory stays on small pages, so that it costs what is
  /// written. A call does at most one page of 2 MB, about half a millisecond, and is to be repeated until it returns
  /// false: nothing was left to do.
  bool join_pages(std::int64_t num_written);

  /// Copies a block of the hot tier. Cost: O(block_bytes).
  void copy(BlockId from, BlockId to);
  /// Moves a block to another tier. Throws kBackend when the bytes cannot be read or written; both places are empty
  /// then.
  void move(KvPlace from, KvPlace to);

  /// Throws kBackend when the place is empty or damaged. Hot blocks are never empty. Requires: block_bytes() bytes.
  void read(KvPlace place, std::span<std::byte> bytes) const;
  /// Throws kBackend when the bytes cannot be written; the place is empty then.
  void write(KvPlace place, std::span<const std::byte> bytes);

 private:
  std::size_t check_hot(std::int32_t index) const;
  std::span<std::byte> warm_block(std::int32_t index) const;
  std::span<const std::byte> full_warm_block(std::int32_t index) const;
  void clear(KvPlace place);

  std::vector<Tensor> tensors_;
  std::size_t next_join_ = 0;  ///< tensor that join_pages() looks at next
  std::size_t block_bytes_ = 0;
  std::int64_t num_hot_blocks_ = 0;
  std::int64_t num_warm_blocks_ = 0;
  tensor::Buffer warm_;
  std::vector<bool> warm_full_;
  ColdTier cold_;
  std::vector<std::byte> staging_;  ///< one block, for moves between the hot and the cold tier
};

}  // namespace genai::runner
