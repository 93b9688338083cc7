#pragma once

#include "genai/engine/engine_core.h"
#include "genai/engine/fake_model.h"
#include "genai/engine/fake_paged_runner.h"
#include "genai/engine/fake_runner.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace genai::engine {

/// Everything that came out for one choice.
struct Collected {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<TokenLogprob> logprobs;
  std::optional<FinishReason> finish;
  std::optional<Error> error;
  std::optional<double> score;
};

/// An EngineCore over a fake runner, in virtual time, with its events collected by request and choice.
struct Bench {
  std::shared_ptr<Faults> faults = std::make_shared<Faults>();
  double now = 0.0;
  double clock = 0.0;  ///< what durations are measured with: each look takes a millisecond
  std::map<std::pair<std::uint64_t, int>, Collected> out;
  std::map<std::uint64_t, int> num_last;
  std::map<std::uint64_t, Event> last;
  EngineCore core;

  explicit Bench(EngineOptions options = {}, FakeSize size = {})
      : core(std::make_unique<FakeRunner>(faults, size), fake_token_table(), std::move(options), sink(),
             [this] { return clock += 1e-3; }) {}
  Bench(EngineOptions options, FakePagedSize size)
      : core(std::make_unique<FakePagedRunner>(faults, size), fake_token_table(), std::move(options), sink(),
             [this] { return clock += 1e-3; }) {}
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  EngineCore::Sink sink() {
    return [this](RequestId id, Event event) { collect(id, std::move(event)); };
  }

  void collect(RequestId id, Event event) {
    Collected& each = out[{id.value, event.choice}];
    CHECK_FALSE(each.finish);  // nothing follows the final event of a choice
    each.tokens.insert(each.tokens.end(), event.tokens.begin(), event.tokens.end());
    each.text += event.text;
    each.logprobs.insert(each.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    each.finish = event.finish;
    if (event.score) each.score = event.score;
    if (event.error) each.error = event.error;
    if (event.last) {
      ++num_last[id.value];
      last[id.value] = std::move(event);
    }
  }

  void add(std::uint64_t id, Request request) {
    core.validate(request);
    core.add(RequestId{id}, std::move(request), 1, now);
  }

  bool step() { return core.step(now += 1.0); }

  void run() {
    for (int i = 0; i < 10000 && core.has_work(); ++i) step();
    CHECK_FALSE(core.has_work());
    check_idle();
  }

  /// Nothing is left behind.
  void check_idle() {
    core.step(now);  // carries out the last releases
    core.kv().check_invariants();
    CHECK(core.kv().stats().hot_used == 0);
    CHECK(faults->live_sequences == 0);
    CHECK(faults->num_mix_ups == 0);
  }
};

inline Request greedy(std::vector<TokenId> prompt, std::int64_t max_new_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.params.temperature = 0.0F;
  request.params.max_new_tokens = max_new_tokens;
  return request;
}

}  // namespace genai::engine
