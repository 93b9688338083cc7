#pragma once

#include "genai/runner/model_runner.h"

#include <cstdint>
#include <span>
#include <vector>

namespace genai::runner {

/// What the decoders with contiguous KV share: they know whole sequences and no blocks. One thread.
class ContiguousRunner : public ModelRunner {
 public:
  /// Requires: no operations on blocks. A kCopySequence fails when there is no memory; its child does not exist then.
  std::vector<KvFailure> apply(std::span<const KvOp> ops) final;

  std::int64_t block_bytes() const final { return 0; }
  void read_block(KvPlace place, std::span<std::byte> bytes) const final;
  void write_block(KvPlace place, std::span<const std::byte> bytes) final;

 private:
  /// Starts `child` with a copy of the first `num_tokens` computed positions of `parent`; on an error there is no
  /// child. Requires: the parent has them, the child is new. Throws kResourceExhausted.
  virtual void fork(SequenceId parent, SequenceId child, std::int64_t num_tokens) = 0;
  /// Ends a sequence; unknown ids are ignored.
  virtual void release(SequenceId id) = 0;
};

/// Blocks of `block_bytes` that `bytes` hold, at least 1; what is practically no limit when either is 0.
std::int64_t blocks_within(std::int64_t bytes, std::int64_t block_bytes);

}  // namespace genai::runner
