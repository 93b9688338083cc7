// What a span of a trace costs, in nanoseconds: while nothing is recorded, and while it is. Best and median of 15
// rounds.

#include "genai/base/trace.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

namespace {

constexpr int kSpans = 200000;
constexpr int kRounds = 15;

double round_ns(genai::Tracer& tracer) {
  genai::TraceBuffer& buffer = tracer.thread(genai::TraceThread::kEngine);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kSpans; ++i) {
    const genai::TraceSpan span(buffer, genai::TraceName::kInputs, i);
    asm volatile("" ::: "memory");  // the loop is not to be removed while recording is off
  }
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  return time.count() / kSpans;
}

void report(const char* what, genai::Tracer& tracer) {
  std::array<double, kRounds> rounds{};
  for (double& each : rounds) each = round_ns(tracer);
  std::sort(rounds.begin(), rounds.end());
  std::printf("%-12s best %7.2f ns a span, median %7.2f\n", what, rounds.front(), rounds[kRounds / 2]);
}

}  // namespace

int main() {
  genai::Tracer tracer;
  report("off", tracer);
  tracer.start(genai::TraceLevel::kFull, 100000, "");
  report("recording", tracer);
}
