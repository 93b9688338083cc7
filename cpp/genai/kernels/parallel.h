#pragma once

#include "genai/ort/custom_op.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <span>

namespace genai::kernels {

/// Calls work(index, thread) for each index below `count`, from `threads` threads that take the next index when they
/// are free.
template <typename Work>
void run_all(const ort::KernelContext& context, std::size_t count, int threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  auto body = [&](std::size_t thread) {
    for (std::size_t index = next++; index < count; index = next++) work(index, static_cast<int>(thread));
  };
  if (threads <= 1 || count <= 1) return body(0);
  context.parallel_for(static_cast<std::size_t>(threads), body);
}

/// What one thread does for all before they work, while the others wait.
class Preparation {
 public:
  /// The first caller runs prepare(); the others run wait() again and again until that has ended. False for them when
  /// it threw.
  template <typename Prepare, typename Wait>
  bool run(const Prepare& prepare, const Wait& wait) {
    int state = kOpen;
    if (state_.compare_exchange_strong(state, kTaken)) {
      try {
        prepare();
      } catch (...) {
        state_.store(kFailed, std::memory_order_release);
        throw;
      }
      state_.store(kDone, std::memory_order_release);
      return true;
    }
    while ((state = state_.load(std::memory_order_acquire)) == kTaken) wait();
    return state == kDone;
  }

 private:
  enum { kOpen, kTaken, kDone, kFailed };
  std::atomic<int> state_{kOpen};
};

/// Ranges of indices, one for each thread to begin with, so that what a thread reads lies behind what it read before;
/// who has ended its own range helps with the others.
class IndexRanges {
 public:
  static constexpr std::size_t kMost = 64;

  /// `num` equal ranges, at most kMost, of the indices below `count`.
  IndexRanges(std::size_t count, std::size_t num) : num_(std::clamp<std::size_t>(num, 1, kMost)) {
    for (std::size_t r = 0; r < num_; ++r) set(r, count * r / num_, count * (r + 1) / num_);
  }
  /// Ranges that begin at `starts`, the last of which is the end of all; at most kMost.
  explicit IndexRanges(std::span<const std::size_t> starts) : num_(starts.size() - 1) {
    for (std::size_t r = 0; r < num_; ++r) set(r, starts[r], starts[r + 1]);
  }

  std::size_t num() const { return num_; }
  /// First index of the range with which the thread begins.
  std::size_t first(std::size_t thread) const { return ranges_[thread % num_].begin; }

  /// Calls work(index, next) for the indices that this thread takes. next(): the index that follows in the same range,
  /// if no other thread takes it, or kNone.
  static constexpr std::size_t kNone = ~std::size_t{0};
  template <typename Work>
  void run(std::size_t thread, const Work& work) {
    for (std::size_t r = 0; r < num_; ++r) {
      Range& range = ranges_[(thread + r) % num_];
      const auto next = [&range] {
        const std::size_t index = range.next.load(std::memory_order_relaxed);
        return index < range.end ? index : kNone;
      };
      for (std::size_t index = range.next++; index < range.end; index = range.next++) work(index, next);
    }
  }

 private:
  struct alignas(64) Range {
    std::atomic<std::size_t> next;
    std::size_t begin;
    std::size_t end;
  };
  void set(std::size_t range, std::size_t begin, std::size_t end) {
    ranges_[range].next.store(begin, std::memory_order_relaxed);
    ranges_[range].begin = begin;
    ranges_[range].end = end;
  }

  std::size_t num_;
  std::array<Range, kMost> ranges_;
};

/// Calls work(index, thread) for each index below `count`, from `threads` threads that begin with an equal range each.
/// Before, each thread calls begin(first index of its range), and does nothing when that says false.
template <typename Begin, typename Work>
void run_in_ranges(const ort::KernelContext& context, std::size_t count, int threads, const Begin& begin,
                   const Work& work) {
  IndexRanges ranges(count, std::min(static_cast<std::size_t>(std::max(1, threads)), count));
  auto body = [&](std::size_t thread) {
    if (!begin(ranges.first(thread))) return;
    ranges.run(thread, [&](std::size_t index, const auto&) { work(index, static_cast<int>(thread)); });
  };
  if (ranges.num() == 1) return body(0);
  context.parallel_for(static_cast<std::size_t>(threads), body);
}

}  // namespace genai::kernels
