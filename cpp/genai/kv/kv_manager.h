#pragma once

#include "genai/base/ids.h"
#include "genai/core/kv.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace genai::kv {

struct KvConfig {
  int block_size = 16;               ///< token positions of a block
  std::int64_t num_hot_blocks = 0;   ///< >= 1
  std::int64_t num_warm_blocks = 0;  ///< 0 = no warm tier
  std::int64_t num_cold_blocks = 0;  ///< 0 = no cold tier
  bool prefix_cache = true;          ///< finished blocks are kept and found again by later sequences
  /// False for decoders with contiguous KV: blocks are counted only, nothing is shared or cached, and forks and
  /// releases become operations on whole sequences.
  bool shares_blocks = true;
};

/// Gauges and totals.
struct KvStats {
  std::int64_t hot_used = 0;    ///< blocks that sequences hold
  std::int64_t hot_cached = 0;  ///< blocks that nobody holds and that can be found again
  std::int64_t warm_used = 0;
  std::int64_t cold_used = 0;
  std::int64_t prefix_queried_tokens = 0;  ///< tokens of started sequences
  std::int64_t prefix_hit_tokens = 0;      ///< of those, tokens whose KV was found
  std::int64_t evicted_blocks = 0;         ///< cached blocks that were dropped from the last tier
  std::int64_t swapped_out_blocks = 0;     ///< moves away from the hot tier
  std::int64_t swapped_in_blocks = 0;      ///< moves to the hot tier
  std::int64_t copied_blocks = 0;          ///< copy-on-write
  std::int64_t failed_moves = 0;           ///< moves that the storage could not do
  std::int64_t allocated_blocks = 0;       ///< hot blocks that were given to sequences and to moves
  std::int64_t freed_blocks = 0;           ///< hot blocks whose last holder let go of them
  std::int64_t failed_reserves = 0;        ///< reserve() without room
  std::int64_t cold_writes = 0;            ///< moves to the cold tier
  std::int64_t cold_reads = 0;             ///< moves from the cold tier
};

/// What decides whether a cached block that has to leave a tier is moved down or dropped.
struct SwapCosts {
  double move_seconds = 0.0;       ///< to move one block down and up again
  double recompute_seconds = 1.0;  ///< to compute the KV of one block anew
};

/// Bookkeeping of KV in blocks: which sequence holds which, what can be shared, what is evicted and where to. It owns
/// no KV bytes: what has to happen to them comes out as KvOp, in order. One thread.
///
/// A sequence has a table of blocks, one for each `block_size` positions; tables only grow at their end. `length` is
/// the number of positions whose KV is written. Full, written blocks get the key of their prefix (a chained hash) and
/// can be found by other sequences while somebody holds them, and after that until they are evicted, least recently
/// used first and the end of a sequence before its beginning. A block that is shared or findable is never written to:
/// the writer gets a copy.
///
///     start() -> reserve() -> [take_ops(), the step runs] -> written() -> reserve() ... -> release()
class KvManager {
 public:
  explicit KvManager(KvConfig config);
  ~KvManager();
  KvManager(const KvManager&) = delete;
  KvManager& operator=(const KvManager&) = delete;

  /// As given, without what cannot be used: no cache without sharing, no lower tiers without a cache.
  const KvConfig& config() const;
  /// Positions that the hot tier holds.
  std::int64_t capacity_tokens() const;
  /// Whether `num_tokens` further positions would fit if everything that nobody holds were evicted.
  bool could_hold(std::int64_t num_tokens) const;

  /// Starts a sequence with the longest cached prefix of `tokens` that is a multiple of block_size and leaves at least
  /// one token to compute; returns its length. `salt` names what else KV depends on (adapter, media digest, cache
  /// salt): sequences with different salts never share. Blocks found in lower tiers are moved up while there is room.
  /// Requires: the sequence is new.
  std::int64_t start(SequenceId id, std::span<const TokenId> tokens, std::string_view salt);

  /// Makes room for positions [length, num_tokens) and makes all of them writable (copy-on-write). False, and nothing
  /// changes, when there is no room even after evicting.
  bool reserve(SequenceId id, std::int64_t num_tokens);

  /// The KV of positions [length, tokens.size()) is written now; `tokens` are the ids from the beginning. Full blocks
  /// become findable, unless another sequence holds a findable block of the same prefix. Requires: reserved.
  void written(SequenceId id, std::span<const TokenId> tokens);

  /// Starts `child` with the first `num_tokens` written positions of `parent`, without copying blocks (decoders that do
  /// not share: a copy, and false when there is no room).
  bool fork(SequenceId parent, SequenceId child, std::int64_t num_tokens);

  /// Goes back to `num_tokens` written positions; blocks behind them are given back.
  void rewind(SequenceId id, std::int64_t num_tokens);

  /// Ends a sequence. What is findable stays cached. Unknown ids are ignored.
  void release(SequenceId id);

  bool contains(SequenceId id) const;
  std::int64_t length(SequenceId id) const;  ///< written positions
  /// A loan until the next call that changes the sequence.
  std::span<const BlockId> block_table(SequenceId id) const;

  /// The operations since the last call, in the order in which they must be carried out.
  std::vector<KvOp> take_ops();
  /// The storage could not do a kMoveBlock of the last take_ops() (disk full, damaged file): its target holds nothing.
  /// Also for a place of insert() that could not be filled (only `to` counts then). What lay there, what later
  /// operations made from it and the cached blocks behind it are forgotten. Returns the sequences that hold such a
  /// block, and perhaps one that has got the place since; the caller must release them (and may start them again).
  /// Cost: O(blocks held).
  std::vector<SequenceId> move_failed(const KvOp& op);

  void set_costs(SwapCosts costs);

  /// Where the full blocks of the longest cached prefix of `tokens` lie, in order; for saving. Changes nothing.
  std::vector<KvPlace> find(std::span<const TokenId> tokens, std::string_view salt) const;
  /// Makes a findable block for each full block of `tokens` that is not there yet, for loading, in the highest tier
  /// that has room; stops when there is none without evicting what it has just made. Returns the place for each full
  /// block of `tokens` up to there, and whether its bytes have to be filled in. Carry out take_ops() before filling.
  struct Slot {
    KvPlace place;
    bool is_new = false;
  };
  std::vector<Slot> insert(std::span<const TokenId> tokens, std::string_view salt);

  /// Drops everything that nobody holds, in all tiers.
  void clear_cache();

  KvStats stats() const;
  /// Throws kInternal when the accounting contradicts itself: counts, free lists, tables, index. For tests and for idle
  /// moments. Cost: O(blocks).
  void check_invariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace genai::kv
