#pragma once

#include "genai/base/ids.h"

#include <cstdint>
#include <unordered_map>

namespace genai::kv {

/// Counts token positions against a budget for the decoders that keep contiguous KV. Bookkeeping only: it owns no
/// memory. A sequence reserves all positions that it may ever need when it is admitted, so a running sequence never
/// runs out. One thread.
class TokenBudget {
 public:
  /// capacity: positions that may be reserved in all, >= 0.
  explicit TokenBudget(std::int64_t capacity) : capacity_(capacity) {}

  std::int64_t capacity() const { return capacity_; }
  std::int64_t reserved() const { return reserved_; }

  /// Reserves `num_tokens` for a sequence without a reservation; false (and nothing changes) when they do not fit now.
  bool reserve(SequenceId id, std::int64_t num_tokens) {
    if (reserved_ + num_tokens > capacity_ || !held_.try_emplace(id, num_tokens).second) return false;
    reserved_ += num_tokens;
    return true;
  }

  /// Gives the sequence's reservation back; unknown ids are ignored.
  void release(SequenceId id) {
    const auto it = held_.find(id);
    if (it == held_.end()) return;
    reserved_ -= it->second;
    held_.erase(it);
  }

 private:
  std::int64_t capacity_;
  std::int64_t reserved_ = 0;
  std::unordered_map<SequenceId, std::int64_t> held_;
};

}  // namespace genai::kv
