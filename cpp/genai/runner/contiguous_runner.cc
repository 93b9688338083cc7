#include "genai/runner/contiguous_runner.h"

#include "genai/base/error.h"

#include <algorithm>
#include <limits>

namespace genai::runner {

std::vector<KvFailure> ContiguousRunner::apply(std::span<const KvOp> ops) {
  std::vector<KvFailure> failures;
  for (const KvOp& op : ops) {
    switch (op.kind) {
      case KvOp::Kind::kCopySequence:
        try {
          fork(op.parent, op.child, op.num_tokens);
        } catch (const Error& error) {
          if (error.code() == ErrorCode::kInternal) throw;
          failures.push_back({op, error.what()});
        }
        break;
      case KvOp::Kind::kReleaseSequence:
        release(op.parent);
        break;
      case KvOp::Kind::kCopyBlock:
      case KvOp::Kind::kMoveBlock:
        check(false, "an operation on KV blocks reached a decoder with contiguous KV");
    }
  }
  return failures;
}

void ContiguousRunner::read_block(KvPlace, std::span<std::byte>) const {
  check(false, "a KV block was read from a decoder with contiguous KV");
}

void ContiguousRunner::write_block(KvPlace, std::span<const std::byte>) {
  check(false, "a KV block was written to a decoder with contiguous KV");
}

std::int64_t blocks_within(std::int64_t bytes, std::int64_t block_bytes) {
  if (bytes == 0 || block_bytes == 0) return std::numeric_limits<std::int32_t>::max();
  return std::clamp<std::int64_t>(bytes / block_bytes, 1, std::numeric_limits<std::int32_t>::max());
}

}  // namespace genai::runner
