#pragma once

#include "genai/base/ids.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace genai {

/// A block of `block_size` token positions in the hot tier: an index into every KV tensor of the model. A plain integer
/// because tables of them are handed to kernels as they are.
using BlockId = std::int32_t;

/// Where KV bytes lie.
enum class KvTier : std::uint8_t {
  kHot,   ///< the tensors that kernels read
  kWarm,  ///< host memory
  kCold,  ///< a file
};

/// A block-sized place in a tier.
struct KvPlace {
  KvTier tier = KvTier::kHot;
  std::int32_t index = 0;
  friend auto operator<=>(const KvPlace&, const KvPlace&) = default;
};

/// What the KV bookkeeping wants done with KV bytes. Operations are carried out in order, before the next step.
struct KvOp {
  enum class Kind : std::uint8_t {
    kCopyBlock,        ///< hot to hot: copy-on-write
    kMoveBlock,        ///< between tiers; `from` is free afterwards
    kCopySequence,     ///< decoders with contiguous KV: `child` becomes a copy of `num_tokens` positions of `parent`
    kReleaseSequence,  ///< decoders with contiguous KV: `parent` ends
  };
  Kind kind = Kind::kCopyBlock;
  KvPlace from = {};
  KvPlace to = {};
  SequenceId parent = {};
  SequenceId child = {};
  std::int64_t num_tokens = 0;
};

/// Identity of a prefix: a chained hash over everything that its KV depends on (salt, then the tokens block by block).
/// The same in every process.
struct PrefixKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend auto operator<=>(const PrefixKey&, const PrefixKey&) = default;
};

}  // namespace genai

template <>
struct std::hash<genai::PrefixKey> {
  std::size_t operator()(const genai::PrefixKey& key) const noexcept { return static_cast<std::size_t>(key.low); }
};
