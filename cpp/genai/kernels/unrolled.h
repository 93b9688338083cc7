#pragma once

#include <cstddef>
#include <utility>

namespace genai::kernels {
namespace {

/// Calls body(std::integral_constant<int, i>) for i = 0..kCount - 1, written out: arrays that it indexes stay in
/// registers, which they do not always do in a loop.
template <int kCount, typename Body>
[[gnu::always_inline]] inline void unrolled(const Body& body) {
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, static_cast<int>(kIndex)>()), ...);
  }(std::make_index_sequence<static_cast<std::size_t>(kCount)>());
}

}  // namespace
}  // namespace genai::kernels
