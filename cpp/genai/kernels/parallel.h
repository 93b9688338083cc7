#pragma once

#include "genai/ort/custom_op.h"

#include <atomic>
#include <cstddef>

namespace genai::kernels {

/// Calls work(index, thread) for each index below `count`, from `threads` threads that take the next index when they
/// are free.
template <typename Work>
void run_all(const ort::KernelContext& context, std::size_t count, int threads, const Work& work) {
  if (threads <= 1 || count <= 1) {
    for (std::size_t index = 0; index < count; ++index) work(index, 0);
    return;
  }
  std::atomic<std::size_t> next{0};
  auto body = [&](std::size_t thread) {
    for (std::size_t index = next++; index < count; index = next++) work(index, static_cast<int>(thread));
  };
  context.parallel_for(static_cast<std::size_t>(threads), body);
}

}  // namespace genai::kernels
