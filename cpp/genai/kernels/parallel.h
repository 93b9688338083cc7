#pragma once

#include "genai/ort/custom_op.h"

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

}  // namespace genai::kernels
