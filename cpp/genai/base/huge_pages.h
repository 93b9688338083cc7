#pragma once

#include <cstddef>

namespace genai {

/// Bytes of a huge page.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Zeros from the system that start at a multiple of kHugePage, on huge pages where the system has them; nullptr when
/// there is no memory. `size_bytes`: a multiple of kHugePage. To be given back with munmap(). Thread-safe.
std::byte* map_huge(std::size_t size_bytes);

/// `size_bytes` rounded up to pages of the smallest size.
std::size_t whole_pages(std::size_t size_bytes);

/// Of a mapping of `size_bytes` and kHugePage bytes at `memory`, keeps `size_bytes` from a multiple of kHugePage on,
/// whose address it returns, and gives the rest back. `size_bytes`: whole pages. Thread-safe.
std::byte* keep_aligned(void* memory, std::size_t size_bytes);

/// Puts kHugePage bytes at `start`, a multiple of it, on one huge page where the system can; their content stays. Pages
/// of them that were never written to take memory then. Half a millisecond. Thread-safe.
void join_pages(std::byte* start);

}  // namespace genai
