// What this machine can do at most: `machine_peaks [threads [mebibytes]]` prints one JSON object with the bytes a
// second that the threads read from memory, each from its own buffer of so many mebibytes (256), and the operations a
// second of int8 products (VNNI) and of bfloat16 tiles (AMX), 0 where the processor has none. An operation is a
// multiplication or an addition.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "genai/kernels/isa.h"

namespace {

using Clock = std::chrono::steady_clock;

/// Calls work(thread) on each thread at once, and returns the best seconds of some rounds.
double best_seconds(int num_threads, const std::function<void(int)>& work) {
  double best = 1e9;
  for (int round = 0; round < 7; ++round) {
    std::atomic<int> waiting{num_threads};
    std::vector<double> seconds(static_cast<std::size_t>(num_threads));
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; ++t) {
      threads.emplace_back([&, t] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        const Clock::time_point start = Clock::now();
        work(t);
        seconds[static_cast<std::size_t>(t)] = std::chrono::duration<double>(Clock::now() - start).count();
      });
    }
    for (std::thread& thread : threads) thread.join();
    best = std::min(best, *std::max_element(seconds.begin(), seconds.end()));
  }
  return best;
}

std::atomic<std::uint64_t> sink;

double read_bytes_per_second(int num_threads, std::size_t mebibytes) {
  const std::size_t num_words = (mebibytes << 20) / 8;
  std::vector<std::vector<std::uint64_t>> memory(static_cast<std::size_t>(num_threads));
  for (std::vector<std::uint64_t>& words : memory) words.assign(num_words, 1);
  const double seconds = best_seconds(num_threads, [&](int t) {
    const std::uint64_t* const words = memory[static_cast<std::size_t>(t)].data();
    std::uint64_t sums[16] = {};
    for (std::size_t i = 0; i < num_words; i += 16) {
      for (std::size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
    }
    for (const std::uint64_t sum : sums) sink += sum;
  });
  return static_cast<double>(num_threads) * static_cast<double>(num_words) * 8 / seconds;
}

#if defined(__x86_64__)

constexpr int kRounds = 400000;

__attribute__((target("avx512f,avx512vnni"))) void multiply_int8() {
  __m512i sums[16];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  __m512i a = _mm512_set1_epi8(1);
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 16
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, a);
    __asm__ volatile("" : "+v"(a));
  }
  for (__m512i& sum : sums) __asm__ volatile("" : "+v"(sum));
}

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t column_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

__attribute__((target("amx-tile,amx-bf16"))) void multiply_tiles() {
  TileConfig config;
  std::fill(config.column_bytes, config.column_bytes + 8, std::uint16_t{64});
  std::fill(config.rows, config.rows + 8, std::uint8_t{16});
  // The compiler takes only the first bytes for read.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  for (int i = 0; i < kRounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

#endif

}  // namespace

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  const std::size_t mebibytes = argc > 2 ? static_cast<std::size_t>(std::max(1, std::atoi(argv[2]))) : 256;
  double int8 = 0;
  double bf16 = 0;
#if defined(__x86_64__)
  const std::vector<genai::kernels::Isa> isas = genai::kernels::supported_isas();
  const auto has = [&](genai::kernels::Isa isa) { return std::find(isas.begin(), isas.end(), isa) != isas.end(); };
  if (has(genai::kernels::Isa::kAvx512Vnni)) {
    int8 = num_threads * 128.0 * 16 * kRounds / best_seconds(num_threads, [](int) { multiply_int8(); });
  }
  if (has(genai::kernels::Isa::kAmx)) {
    bf16 = num_threads * 2.0 * 16 * 16 * 32 * 4 * kRounds / best_seconds(num_threads, [](int) { multiply_tiles(); });
  }
#endif
  std::printf("{\"threads\": %d, \"read_bytes_per_second\": %.4g, \"int8_ops_per_second\": %.4g, ", num_threads,
              read_bytes_per_second(num_threads, mebibytes), int8);
  std::printf("\"bf16_tile_ops_per_second\": %.4g}\n", bf16);
  return 0;
}
