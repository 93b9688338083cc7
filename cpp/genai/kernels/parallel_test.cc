#include "genai/kernels/parallel.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace genai::kernels {
namespace {

constexpr std::size_t kThreads = 4;

TEST_CASE("one thread prepares, and the others see what it made") {
  for (int round = 0; round < 50; ++round) {
    Preparation preparation;
    int made = 0;  // not atomic: the preparation orders it
    std::array<int, kThreads> seen{};
    std::atomic<int> prepared{0};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const auto prepare = [&] {
          ++prepared;
          made = 7;
        };
        if (preparation.run(prepare, [] { std::this_thread::yield(); })) seen[t] = made;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(prepared == 1);
    CHECK(seen == std::array{7, 7, 7, 7});
    CHECK(preparation.run([&] { ++prepared; }, [] {}));
    CHECK(prepared == 1);
  }
}

TEST_CASE("nobody waits for a preparation that failed") {
  Preparation preparation;
  std::atomic<bool> is_waited_for{false};
  std::atomic<int> began{0};
  std::atomic<int> thrown{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const auto prepare = [&] {
        while (!is_waited_for) std::this_thread::yield();
        throw std::runtime_error("no memory");
      };
      try {
        if (preparation.run(prepare, [&] { is_waited_for = true; })) ++began;
      } catch (const std::runtime_error&) {
        ++thrown;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(thrown == 1);
  CHECK(began == 0);
}

}  // namespace
}  // namespace genai::kernels
