#include "genai/base/random.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>

namespace genai {
namespace {

// Known answers of the authors' library Random123; tests/golden/PROVENANCE.md says who recomputed them.
TEST_CASE("Philox_KnownCountersAndKeys_GivesKnownAnswers") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
  CHECK(philox4x32({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, {0xFFFFFFFF, 0xFFFFFFFF}) ==
        PhiloxCounter{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD});
  CHECK(philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}) ==
        PhiloxCounter{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1});
}

TEST_CASE("UniformAt_SameArguments_GivesSameNumber") {
  static_assert(uniform_at(7, 1, 2) == uniform_at(7, 1, 2));

  CHECK(uniform_at(7, 1, 2) == uniform_at(7, 1, 2));
}

TEST_CASE("UniformAt_OneArgumentDiffers_GivesOtherNumbers") {
  constexpr std::uint64_t kHigh = std::uint64_t{1} << 32U;
  std::set<double> numbers;
  for (const std::uint64_t bit : {std::uint64_t{0}, std::uint64_t{1}, kHigh}) {
    numbers.insert(uniform_at(bit, 0, 0));
    numbers.insert(uniform_at(0, bit, 0));
    numbers.insert(uniform_at(0, 0, bit));
  }

  CHECK(numbers.size() == 7);  // three of the nine are the same (0, 0, 0)
}

TEST_CASE("UniformAt_ManyPositions_IsUniformInUnitInterval") {
  constexpr int kDraws = 100000;
  constexpr int kBins = 100;
  int counts[kBins] = {};
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double u = uniform_at(42, 3, i);
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    ++counts[static_cast<int>(u * kBins)];
  }

  constexpr double kExpected = static_cast<double>(kDraws) / kBins;
  double chi_square = 0.0;
  for (const int count : counts) {
    chi_square += (count - kExpected) * (count - kExpected) / kExpected;
  }
  CHECK(chi_square < 148.2);  // 0.999 quantile of chi-square with 99 degrees of freedom
}

}  // namespace
}  // namespace genai
