#pragma once

#include "genai/ort/custom_op.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <type_traits>

namespace genai::kernels {

/// The index that is taken next by a thread of run_all(); at least `count` when there is none.
class NextIndex {
 public:
  explicit NextIndex(const std::atomic<std::size_t>& next) : next_(next) {}
  std::size_t operator()() const { return next_.load(std::memory_order_relaxed); }

 private:
  const std::atomic<std::size_t>& next_;
};

/// Calls work(index, thread), or work(index, thread, NextIndex) if it takes that, for each index below `count`, from
/// `threads` threads that take the next index when they are free.
template <typename Work>
void run_all(const ort::KernelContext& context, std::size_t count, int threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  auto body = [&](std::size_t thread) {
    for (std::size_t index = next++; index < count; index = next++) {
      if constexpr (std::is_invocable_v<Work, std::size_t, int, NextIndex>) {
        work(index, static_cast<int>(thread), NextIndex(next));
      } else {
        work(index, static_cast<int>(thread));
      }
    }
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

/// Calls work(index, thread) for each index below `count`, from `threads` threads that begin with an equal range each,
/// so that what a thread reads lies behind what it read before; who has ended its own range helps with the others.
/// Before, each thread calls begin(first index of its range), and does nothing when that says false.
template <typename Begin, typename Work>
void run_in_ranges(const ort::KernelContext& context, std::size_t count, int threads, const Begin& begin,
                   const Work& work) {
  struct alignas(64) Range {
    std::atomic<std::size_t> next;
    std::size_t end;
  };
  constexpr std::size_t kMost = 64;
  const std::size_t num =
      std::min({kMost, static_cast<std::size_t>(std::max(1, threads)), std::max<std::size_t>(1, count)});
  std::array<Range, kMost> ranges;
  for (std::size_t r = 0; r < num; ++r) {
    ranges[r].next.store(count * r / num, std::memory_order_relaxed);
    ranges[r].end = count * (r + 1) / num;
  }
  auto body = [&](std::size_t thread) {
    if (!begin(count * std::min(thread, num - 1) / num)) return;
    for (std::size_t r = 0; r < num; ++r) {
      Range& range = ranges[(thread + r) % num];
      for (std::size_t index = range.next++; index < range.end; index = range.next++) {
        work(index, static_cast<int>(thread));
      }
    }
  };
  if (num == 1) return body(0);
  context.parallel_for(static_cast<std::size_t>(threads), body);
}

}  // namespace genai::kernels
