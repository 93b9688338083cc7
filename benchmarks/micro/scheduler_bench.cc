// Time of the scheduler's own work in a step: schedule(), take_kv_ops() and update().
//
// Timed: these calls, for steps in which every sequence decodes one token, with the KV bookkeeping that they cause. Not
// timed: submitting, the steps that compute the prompts, making the results. A round is 64 steps, in which each
// sequence takes four new blocks; sequences that ended are replaced between rounds. Prints the median and the fastest
// and slowest of the rounds.
//
//     scheduler_bench [seconds per line, default 0.3]

#include "genai/sched/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace {

using namespace genai;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMinRounds = 7;
constexpr int kStepsPerRound = 64;
constexpr std::int64_t kMaxTotal = 2048;
constexpr std::int64_t kManyTokens = 1 << 20;

struct Line {
  const char* name;
  int num_running = 64;
  int num_waiting = 0;
  bool prefix_cache = true;
  bool shares_blocks = true;
};

class Load {
 public:
  explicit Load(const Line& line)
      : scheduler_({.max_num_seqs = line.num_running,
                    .max_num_batched_tokens = kManyTokens,
                    .max_prefill_tokens_while_decoding = kManyTokens},
                   {.block_size = 16,
                    .num_hot_blocks = (line.num_running + 1) * (kMaxTotal / 16) * 2,
                    .prefix_cache = line.prefix_cache,
                    .shares_blocks = line.shares_blocks}),
        num_sequences_(static_cast<std::size_t>(line.num_running + line.num_waiting)) {}

  /// Refills the queue and computes prompts until everybody decodes.
  void prepare() {
    while (scheduler_.num_running() + scheduler_.num_waiting() < num_sequences_) {
      std::vector<TokenId> prompt(64 + random_() % 512);
      for (TokenId& token : prompt) token = static_cast<TokenId>(random_() % 50000);
      scheduler_.add({.id = SequenceId{next_id_++},
                      .prompt = std::move(prompt),
                      .max_total_tokens = kMaxTotal,
                      .priority = static_cast<int>(next_id_ % 3),
                      .cache_salt = {}},
                     0.0);
    }
    for (int i = 0; i < 3; ++i) step();
  }

  void step() {
    const auto start = Clock::now();
    const StepPlan plan = scheduler_.schedule(0.0);
    num_ops_ += scheduler_.take_kv_ops().size();
    const auto planned = Clock::now();
    result_.sequences.clear();
    for (const ScheduledSequence& share : plan.sequences) {
      result_.sequences.push_back({share.id, std::nullopt, std::nullopt});
      if (share.needs_logits) result_.sequences.back().token = static_cast<TokenId>(random_() % 50000);
    }
    const auto ran = Clock::now();
    scheduler_.update(result_);
    seconds_ += std::chrono::duration<double>((Clock::now() - ran) + (planned - start)).count();
  }

  double take_seconds() { return std::exchange(seconds_, 0.0); }

 private:
  sched::Scheduler scheduler_;
  std::size_t num_sequences_;
  sched::StepResult result_;
  std::mt19937 random_{1};
  std::uint64_t next_id_ = 1;
  std::size_t num_ops_ = 0;
  double seconds_ = 0.0;
};

void run_line(const Line& line, double seconds) {
  Load load(line);
  std::vector<double> times_us;
  for (const auto start = Clock::now();
       times_us.size() <= kMinRounds || std::chrono::duration<double>(Clock::now() - start).count() < seconds;) {
    load.prepare();
    load.take_seconds();
    for (int i = 0; i < kStepsPerRound; ++i) load.step();
    times_us.push_back(load.take_seconds() * 1e6 / kStepsPerRound);
  }
  times_us.erase(times_us.begin());
  std::ranges::sort(times_us);
  const double median = times_us[times_us.size() / 2];
  std::printf("%-44s %8.2f us/step  %6.1f ns/sequence  (%.2f..%.2f us, %zu rounds)\n", line.name, median,
              1000.0 * median / line.num_running, times_us.front(), times_us.back(), times_us.size());
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.3;
  for (const Line& line : {Line{.name = "1 running", .num_running = 1}, Line{.name = "64 running"},
                           Line{.name = "64 running, 1000 waiting", .num_waiting = 1000},
                           Line{.name = "64 running, no prefix cache", .prefix_cache = false},
                           Line{.name = "64 running, contiguous KV", .shares_blocks = false},
                           Line{.name = "256 running", .num_running = 256}}) {
    run_line(line, seconds);
  }
  return 0;
}
