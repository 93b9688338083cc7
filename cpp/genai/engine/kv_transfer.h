#pragma once

#include "genai/base/ids.h"
#include "genai/kv/kv_manager.h"
#include "genai/runner/model_runner.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace genai::engine {

/// KV of a prefix as bytes: block after block, each as ModelRunner::read_block() gives it. Meaningless for another
/// model, block size or KV type.
struct KvBytes {
  std::int64_t num_tokens = 0;  ///< that the bytes cover; a multiple of block_size
  std::vector<std::byte> bytes;
};

/// Reads the KV of the longest cached prefix of `tokens`. A block that cannot be read ends it. Nothing is cached, or
/// the decoder has no blocks: 0 tokens. Requires: all KV operations are carried out. Throws kResourceExhausted.
KvBytes export_kv(const kv::KvManager& kv, const runner::ModelRunner& runner, std::span<const TokenId> tokens,
                  std::string_view salt);

/// Makes the KV of the full blocks of `tokens` findable, with their bytes; returns the tokens that are cached now,
/// which are fewer when there is no room. `apply_ops` carries out KV operations and says whether all were done. Throws
/// kInvalidArgument when `bytes` has the wrong size, kUnsupported when the decoder has no blocks. When room cannot be
/// made (kBackend) or a block cannot be written, all that nobody uses is dropped from the cache, and the error is
/// thrown.
std::int64_t import_kv(kv::KvManager& kv, runner::ModelRunner& runner, std::span<const TokenId> tokens,
                       std::string_view salt, std::span<const std::byte> bytes, const std::function<bool()>& apply_ops);

}  // namespace genai::engine
