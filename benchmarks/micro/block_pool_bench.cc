// Time of the KV bookkeeping: blocks, starts that find their prefix, forks.
//
// Timed: the named calls alone, as often as a round says; what undoes them (release, rewind) is timed as a line of its
// own or not at all. Not timed: making token lists, and the first round. Prints the median and the fastest and slowest
// of the rounds.
//
//     block_pool_bench [seconds per line, default 0.3]

#include "genai/kv/block_pool.h"
#include "genai/kv/kv_manager.h"
#include "genai/kv/prefix_key.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

using namespace genai;
using namespace genai::kv;
using Clock = std::chrono::steady_clock;
using Tokens = std::vector<TokenId>;

constexpr std::size_t kMinRounds = 7;
constexpr std::int64_t kPrompt = 4096;

Tokens random_tokens(std::int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  Tokens tokens(static_cast<std::size_t>(size));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 150000);
  return tokens;
}

/// Keeps the compiler from dropping the work.
volatile std::int64_t sink = 0;

/// `round(stopwatch)` does `num_calls` calls and starts and stops the watch around what counts.
class Stopwatch {
 public:
  void start() { before_ = Clock::now(); }
  void stop() { sum_ns_ += std::chrono::duration<double, std::nano>(Clock::now() - before_).count(); }
  double sum_ns() const { return sum_ns_; }

 private:
  Clock::time_point before_;
  double sum_ns_ = 0.0;
};

template <typename Round>
void measure(const char* name, double seconds, double num_calls, Round round) {
  Stopwatch ignored;
  round(ignored);
  std::vector<double> times_ns;
  for (const auto start = Clock::now();
       times_ns.size() < kMinRounds || std::chrono::duration<double>(Clock::now() - start).count() < seconds;) {
    Stopwatch watch;
    round(watch);
    times_ns.push_back(watch.sum_ns() / num_calls);
  }
  std::ranges::sort(times_ns);
  std::printf("%-58s %10.1f ns  (%.1f..%.1f ns, %zu rounds)\n", name, times_ns[times_ns.size() / 2], times_ns.front(),
              times_ns.back(), times_ns.size());
}

void compute(KvManager& manager, SequenceId id, const Tokens& tokens) {
  manager.start(id, tokens, "");
  if (!manager.reserve(id, std::ssize(tokens))) std::abort();
  manager.written(id, tokens);
}

void measure_pool(double seconds) {
  constexpr std::int32_t kBlocks = 16384;
  BlockPool pool(kBlocks);
  std::vector<std::int32_t> order(kBlocks);
  const auto fill = [&] {
    for (std::int32_t& place : order) place = pool.allocate();
  };
  std::mt19937 random(1);
  measure("BlockPool: allocate", seconds, kBlocks, [&](Stopwatch& watch) {
    watch.start();
    fill();
    watch.stop();
    std::ranges::shuffle(order, random);
    for (const std::int32_t place : order) pool.release(place);
  });
  measure("BlockPool: release, random order", seconds, kBlocks, [&](Stopwatch& watch) {
    fill();
    std::ranges::shuffle(order, random);
    watch.start();
    for (const std::int32_t place : order) pool.release(place);
    watch.stop();
  });
  fill();
  for (const std::int32_t place : order) pool.set_findable(place, true);
  for (const std::int32_t place : order) pool.release(place);
  measure("BlockPool: hold and release a cached block, random order", seconds, kBlocks, [&](Stopwatch& watch) {
    std::ranges::shuffle(order, random);
    watch.start();
    for (const std::int32_t place : order) {
      pool.add_ref(place);
      pool.release(place);
    }
    watch.stop();
  });
}

void measure_keys(double seconds) {
  const Tokens tokens = random_tokens(kPrompt, 2);
  measure("child_key, a token of 16-token blocks", seconds, kPrompt, [&](Stopwatch& watch) {
    watch.start();
    PrefixKey key = root_key("");
    for (std::size_t i = 0; i < tokens.size(); i += 16) key = child_key(key, std::span(tokens).subspan(i, 16));
    watch.stop();
    sink = sink + static_cast<std::int64_t>(key.low & 1U);
  });
}

void measure_manager(double seconds) {
  // Other prompts fill the index, so that look-ups miss the processor's caches as they would in a server.
  constexpr std::int64_t kPrompts = 32;
  KvManager manager({.block_size = 16, .num_hot_blocks = (kPrompts + 2) * kPrompt / 16});
  std::vector<Tokens> prompts;
  for (unsigned i = 0; i < kPrompts; ++i) prompts.push_back(random_tokens(kPrompt + 1, 10 + i));
  for (const Tokens& prompt : prompts) {
    compute(manager, SequenceId{1}, prompt);
    manager.release(SequenceId{1});
  }
  measure("start, 4096-token prompt, all found", seconds, kPrompts, [&](Stopwatch& watch) {
    for (const Tokens& prompt : prompts) {
      watch.start();
      sink = sink + manager.start(SequenceId{1}, prompt, "");
      watch.stop();
      manager.release(SequenceId{1});
    }
  });
  measure("release of it", seconds, kPrompts, [&](Stopwatch& watch) {
    for (const Tokens& prompt : prompts) {
      manager.start(SequenceId{1}, prompt, "");
      watch.start();
      manager.release(SequenceId{1});
      watch.stop();
    }
  });
  manager.start(SequenceId{1}, prompts[0], "");
  measure("fork of a 4096-token sequence", seconds, kPrompts, [&](Stopwatch& watch) {
    for (std::uint64_t i = 0; i < kPrompts; ++i) {
      watch.start();
      manager.fork(SequenceId{1}, SequenceId{2 + i}, kPrompt);
      watch.stop();
    }
    for (std::uint64_t i = 0; i < kPrompts; ++i) manager.release(SequenceId{2 + i});
  });
}

void measure_growth(double seconds) {
  Tokens tokens = random_tokens(kPrompt + 256, 4);
  KvManager manager({.block_size = 16, .num_hot_blocks = 512});
  const SequenceId id{1};
  compute(manager, id, Tokens(tokens.begin(), tokens.begin() + kPrompt));
  measure("reserve and written of one token, new tokens, evicting", seconds, 256, [&](Stopwatch& watch) {
    manager.rewind(id, kPrompt);
    for (std::int64_t i = 0; i < 256; ++i) ++tokens[static_cast<std::size_t>(kPrompt + i)];
    watch.start();
    for (std::int64_t i = kPrompt; i < kPrompt + 256; ++i) {
      if (!manager.reserve(id, i + 1)) std::abort();
      manager.written(id, std::span(tokens).first(static_cast<std::size_t>(i + 1)));
    }
    watch.stop();
  });
}

void measure_tiers(double seconds) {
  // Two prompts take turns in a hot tier that holds one of them.
  KvManager manager({.block_size = 16, .num_hot_blocks = kPrompt / 16 + 1, .num_warm_blocks = 2 * kPrompt / 16});
  const std::vector<Tokens> prompts{random_tokens(kPrompt + 1, 5), random_tokens(kPrompt + 1, 6)};
  for (const Tokens& prompt : prompts) {
    compute(manager, SequenceId{1}, prompt);
    manager.release(SequenceId{1});
  }
  std::size_t turn = 0;
  measure("start, 4096-token prompt, all swapped with another's", seconds, 1, [&](Stopwatch& watch) {
    watch.start();
    sink = sink + manager.start(SequenceId{1}, prompts[turn++ % 2], "");
    watch.stop();
    sink = sink + std::ssize(manager.take_ops());
    manager.release(SequenceId{1});
  });
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.3;
  std::printf("time a call; block_size 16\n");
  measure_pool(seconds);
  measure_keys(seconds);
  measure_manager(seconds);
  measure_growth(seconds);
  measure_tiers(seconds);
  return 0;
}
