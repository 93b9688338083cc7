#pragma once

#include <cstddef>

namespace genai {

/// Bytes of a huge page.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Zeros from the system that start at a multiple of kHugePage, on huge pages where the system has them; nullptr when
/// there is no memory. `size_bytes`: a multiple of kHugePage. To be given back with munmap(). Thread-safe.
std::byte* map_huge(std::size_t size_bytes);

}  // namespace genai
