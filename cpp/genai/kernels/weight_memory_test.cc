#include "genai/kernels/weight_memory.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace genai::kernels {

TEST_CASE("weights are zero, aligned and apart from each other") {
  std::vector<std::shared_ptr<std::byte>> all;
  for (const std::size_t size : {1UL, 63UL, 4096UL, 100000UL, 64UL << 20, 3UL << 20}) {
    all.push_back(allocate_weights(size));
    std::byte* const p = all.back().get();
    CHECK(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
    CHECK(p[0] == std::byte{0});
    CHECK(p[size - 1] == std::byte{0});
    std::memset(p, static_cast<int>(all.size()), size);
  }
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i].get()[0] == static_cast<std::byte>(i + 1));
}

TEST_CASE("weights count while they live") {
  const std::size_t before = weight_bytes();
  std::shared_ptr<std::byte> weights = allocate_weights(64UL << 20);
  CHECK(weight_bytes() - before == 64UL << 20);
  weights.reset();
  CHECK(weight_bytes() == before);
}

TEST_CASE("weights outlive their neighbours") {
  std::shared_ptr<std::byte> kept = allocate_weights(1000);
  {
    const std::shared_ptr<std::byte> gone = allocate_weights(1000);
  }
  std::memset(kept.get(), 7, 1000);
  CHECK(allocate_weights(1000).get()[999] == std::byte{0});
  CHECK(kept.get()[999] == std::byte{7});
}

}  // namespace genai::kernels
