#pragma once

// What the tests of KvManager share.

#include "genai/kv/kv_manager.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

namespace genai::kv::test {

using Tokens = std::vector<TokenId>;
using Table = std::vector<BlockId>;

constexpr SequenceId kA{1};
constexpr SequenceId kB{2};
constexpr SequenceId kC{3};

/// Ids first, first + 1, ...
inline Tokens ids(std::size_t size, TokenId first = 100) {
  Tokens tokens(size);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline KvConfig small(std::int64_t hot, std::int64_t warm = 0, std::int64_t cold = 0) {
  return {.block_size = 4, .num_hot_blocks = hot, .num_warm_blocks = warm, .num_cold_blocks = cold};
}

/// Starts a sequence and writes all of its tokens; returns how many were found.
inline std::int64_t compute(KvManager& manager, SequenceId id, const Tokens& tokens, std::string_view salt = "") {
  const std::int64_t found = manager.start(id, tokens, salt);
  REQUIRE(manager.reserve(id, std::ssize(tokens)));
  manager.written(id, tokens);
  return found;
}

/// What compute() and release() leave in the cache.
inline void cache(KvManager& manager, const Tokens& tokens) {
  compute(manager, SequenceId{99}, tokens);
  manager.release(SequenceId{99});
}

inline Table table(const KvManager& manager, SequenceId id) {
  const std::span<const BlockId> blocks = manager.block_table(id);
  return {blocks.begin(), blocks.end()};
}

inline KvPlace hot(std::int32_t index) {
  return {.tier = KvTier::kHot, .index = index};
}
inline KvPlace warm(std::int32_t index) {
  return {.tier = KvTier::kWarm, .index = index};
}
inline KvPlace cold(std::int32_t index) {
  return {.tier = KvTier::kCold, .index = index};
}

struct Bytes {
  KvOp::Kind kind;
  KvPlace from;
  KvPlace to;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};
constexpr KvOp::Kind kCopy = KvOp::Kind::kCopyBlock;
constexpr KvOp::Kind kMove = KvOp::Kind::kMoveBlock;

inline std::vector<Bytes> take(KvManager& manager) {
  std::vector<Bytes> out;
  for (const KvOp& op : manager.take_ops()) out.push_back({op.kind, op.from, op.to});
  return out;
}

}  // namespace genai::kv::test
