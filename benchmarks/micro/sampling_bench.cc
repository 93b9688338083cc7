// Time to sample one row, by processor and vocabulary size.
//
// Timed: SequenceSampler::process() (with the copy of the row that it needs), sample() and RowLogprobs, on rows that
// were made before. Not timed: making rows and samplers, and the first round, which grows the buffers. Rows are taken
// in turn, so that a row is not in the first-level cache. Prints the median and the fastest and slowest of the rounds.
//
//     sampling_bench [seconds per line, default 0.3]

#include "genai/sampling/sequence_sampler.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace genai;
using genai::sampling::RowContext;
using genai::sampling::SequenceSampler;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kRows = 8;
constexpr std::size_t kMinRounds = 7;

/// Logits as language models make them: a broad bell, and a few tokens far above it.
std::vector<std::vector<float>> make_rows(std::size_t vocab_size) {
  std::mt19937 random(7);
  std::normal_distribution<float> bell(-2.0F, 2.5F);
  std::exponential_distribution<float> peak(0.5F);
  std::vector<std::vector<float>> rows(kRows, std::vector<float>(vocab_size));
  for (std::vector<float>& row : rows) {
    for (float& logit : row) logit = bell(random);
    for (int i = 0; i < 40; ++i) row[random() % vocab_size] = 10.0F + peak(random);
  }
  return rows;
}

struct Line {
  std::string name;
  SamplingParams params;
  bool has_logprobs = false;
};

std::vector<Line> make_lines() {
  std::vector<Line> lines;
  const auto add = [&](const std::string& name, const std::function<void(SamplingParams&)>& set) {
    lines.push_back({.name = name, .params = {}});
    set(lines.back().params);
  };
  add("greedy", [](SamplingParams& p) { p.temperature = 0.0F; });
  add("temperature", [](SamplingParams& p) { p.temperature = 0.8F; });
  add("temperature top_k=50 top_p=0.9", [](SamplingParams& p) {
    p.temperature = 0.8F;
    p.top_k = 50;
    p.top_p = 0.9F;
  });
  add("top_p=0.9", [](SamplingParams& p) { p.top_p = 0.9F; });
  add("top_p=0.9 temperature=5 (flat)", [](SamplingParams& p) {
    p.temperature = 5.0F;
    p.top_p = 0.9F;
  });
  add("min_p=0.05", [](SamplingParams& p) { p.min_p = 0.05F; });
  add("top_a=0.2", [](SamplingParams& p) { p.top_a = 0.2F; });
  add("typical_p=0.9", [](SamplingParams& p) { p.typical_p = 0.9F; });
  add("mirostat", [](SamplingParams& p) { p.mirostat = 2; });
  add("xtc", [](SamplingParams& p) { p.xtc_probability = 1.0F; });
  add("greedy repetition frequency presence", [](SamplingParams& p) {
    p.temperature = 0.0F;
    p.repetition_penalty = 1.1F;
    p.frequency_penalty = p.presence_penalty = 0.5F;
  });
  add("greedy dry", [](SamplingParams& p) {
    p.temperature = 0.0F;
    p.dry_multiplier = 0.8F;
  });
  add("greedy no_repeat_ngram=3", [](SamplingParams& p) {
    p.temperature = 0.0F;
    p.no_repeat_ngram_size = 3;
  });
  add("greedy top_logprobs=20", [](SamplingParams& p) { p.temperature = 0.0F; });
  lines.back().has_logprobs = true;
  return lines;
}

/// Keeps the compiler from dropping the work.
volatile std::int64_t sink = 0;

void run_line(const Line& line, const std::vector<std::vector<float>>& rows, double seconds) {
  const std::size_t vocab_size = rows.front().size();
  std::vector<TokenId> tokens(2048);
  std::mt19937 random(3);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % std::min<std::size_t>(vocab_size, 2000));
  const RowContext context{.tokens = tokens, .num_prompt_tokens = 1024};
  SequenceSampler sampler(line.params, {}, static_cast<std::int64_t>(vocab_size), 1, 0);
  std::vector<float> copy;

  const auto sample_all = [&] {
    for (const std::vector<float>& row : rows) {
      if (line.has_logprobs) {
        const sampling::RowLogprobs logprobs(row, 20);
        sink = sink + logprobs.score(0, row[0]).top.front().token;
      }
      if (sampler.has_processors()) {
        copy = row;
        sampler.process(copy, context);
        sink = sink + sampler.sample(copy, context);
      } else {
        sink = sink + sampler.sample(row, context);
      }
    }
  };
  sample_all();
  std::vector<double> times_us;
  for (const auto start = Clock::now();
       times_us.size() < kMinRounds || std::chrono::duration<double>(Clock::now() - start).count() < seconds;) {
    const auto before = Clock::now();
    sample_all();
    times_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - before).count() / kRows);
  }
  std::ranges::sort(times_us);
  const double median = times_us[times_us.size() / 2];
  std::printf("%8zu  %-38s %9.1f us/row  %7.3f ns/element  (%.1f..%.1f us, %zu rounds)\n", vocab_size,
              line.name.c_str(), median, 1000.0 * median / static_cast<double>(vocab_size), times_us.front(),
              times_us.back(), times_us.size());
}

const char* name_of(sampling::Isa isa) {
  switch (isa) {
    case sampling::Isa::kPlain:
      return "plain";
    case sampling::Isa::kAvx2:
      return "AVX2";
    case sampling::Isa::kAvx512:
      return "AVX-512";
  }
  return "unknown";
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.3;
  std::printf("kernels: %s; 2048 tokens of history, 1024 of them generated\n", name_of(sampling::best_isa()));
  for (const std::size_t vocab_size : {49152U, 151936U}) {
    const std::vector<std::vector<float>> rows = make_rows(vocab_size);
    for (const Line& line : make_lines()) run_line(line, rows, seconds);
  }
  return 0;
}
