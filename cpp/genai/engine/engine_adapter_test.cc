// Adapters of requests: runs have one each, KV is not shared between them, faults stay with theirs.

#include "genai/engine/kv_salt.h"
#include "genai/engine/test_bench.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace genai::engine {
namespace {

std::shared_ptr<const Adapter> adapter(std::uint64_t number) {
  return number == 0 ? nullptr : std::make_shared<const FakeAdapter>(number);
}

Request with(Request request, std::vector<AdapterSpan> spans) {
  request.adapters = std::move(spans);
  return request;
}

/// What the fake model goes on with, by its definition.
std::vector<TokenId> expected(std::vector<TokenId> tokens, std::int64_t count, std::vector<AdapterSpan> spans) {
  std::vector<TokenId> entries;
  std::vector<TokenId> answer;
  for (std::int64_t step = 0; step < count; ++step) {
    entries.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const Adapter* const each = adapter_at(spans, static_cast<std::int64_t>(i));
      entries.push_back(tokens[i] + (each == nullptr ? 0 : 1000 * static_cast<TokenId>(each->number())));
    }
    answer.push_back(fake_next_token(entries));
    tokens.push_back(answer.back());
  }
  return answer;
}

const std::vector<TokenId> kPrompt = {5, 1, 7, 2, 9, 4, 4, 8, 3, 6};

template <typename Size>
void check_side_by_side(Size size) {
  Bench bench({}, size);
  for (std::uint64_t id = 1; id <= 12; ++id) {
    bench.add(id, with(greedy(kPrompt, 6), {{.first = 0, .adapter = adapter(id % 4)}}));
  }

  bench.run();

  for (std::uint64_t id = 1; id <= 12; ++id) {
    CHECK(bench.out[{id, 0}].tokens == expected(kPrompt, 6, {{.first = 0, .adapter = adapter(id % 4)}}));
  }
}

TEST_CASE("Adapters_OfRequestsSideBySide_EachRequestAsAlone") {
  check_side_by_side(FakeSize{});
  check_side_by_side(FakePagedSize{});
  CHECK(expected(kPrompt, 6, {}) != expected(kPrompt, 6, {{.first = 0, .adapter = adapter(1)}}));
}

TEST_CASE("Adapters_ThatChangeInThePromptAndInTheAnswer_TokensRunWithTheirOwn") {
  const std::vector<AdapterSpan> spans = {
      {.first = 3, .adapter = adapter(1)}, {.first = 7, .adapter = adapter(2)}, {.first = 12, .adapter = nullptr}};
  for (const bool in_blocks : {false, true}) {
    std::unique_ptr<Bench> bench = in_blocks ? std::make_unique<Bench>(EngineOptions{}, FakePagedSize{})
                                             : std::make_unique<Bench>(EngineOptions{}, FakeSize{});
    bench->add(1, with(greedy(kPrompt, 6), spans));
    bench->add(2, greedy(kPrompt, 6));

    bench->run();

    CHECK(bench->out[{1, 0}].tokens == expected(kPrompt, 6, spans));
    CHECK(bench->out[{2, 0}].tokens == expected(kPrompt, 6, {}));
  }
}

TEST_CASE("Prefix_OfAnotherAdapter_IsNotFound") {
  Bench bench({}, FakePagedSize{.block_size = 4});
  const std::shared_ptr<const Adapter> first = adapter(1);
  bench.add(1, with(greedy(kPrompt, 4), {{.first = 0, .adapter = first}}));
  bench.run();
  bench.add(2, with(greedy(kPrompt, 4), {{.first = 0, .adapter = first}}));
  bench.add(3, with(greedy(kPrompt, 4), {{.first = 0, .adapter = adapter(2)}}));
  bench.add(4, greedy(kPrompt, 4));

  bench.run();

  CHECK(bench.last[2].usage.cached_tokens == 8);
  CHECK(bench.last[3].usage.cached_tokens == 0);
  CHECK(bench.last[4].usage.cached_tokens == 0);
}

TEST_CASE("Fault_OfOneRequestAmongAdapters_EndsItAlone") {
  Bench bench({}, FakePagedSize{});
  bench.faults->throw_on_token = 30;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    std::vector<TokenId> prompt = kPrompt;
    if (id == 3) prompt[4] = 30;
    bench.add(id, with(greedy(prompt, 1), {{.first = 0, .adapter = adapter(1 + id % 2)}}));
  }

  bench.run();

  for (std::uint64_t id = 1; id <= 6; ++id) {
    CHECK(bench.out[{id, 0}].error.has_value() == (id == 3));
    if (id == 3) continue;
    CHECK(bench.out[{id, 0}].tokens == expected(kPrompt, 1, {{.first = 0, .adapter = adapter(1 + id % 2)}}));
  }
}

TEST_CASE("Choices_OfARequestWithAnAdapter_AllHaveIt") {
  Bench bench({}, FakePagedSize{});
  Request request = with(greedy(kPrompt, 5), {{.first = 0, .adapter = adapter(3)}});
  request.params.n = 3;
  bench.add(1, std::move(request));
  bench.add(2, greedy(kPrompt, 5));

  bench.run();

  for (int choice = 0; choice < 3; ++choice) {
    CHECK(bench.out[{1, choice}].tokens == expected(kPrompt, 5, {{.first = 0, .adapter = adapter(3)}}));
  }
}

TEST_CASE("Adapter_OfAnEndedRequest_IsFreed") {
  Bench bench({}, FakePagedSize{});
  std::shared_ptr<const Adapter> own = adapter(1);
  const std::weak_ptr<const Adapter> seen = own;
  bench.add(1, with(greedy(kPrompt, 3), {{.first = 0, .adapter = std::move(own)}}));
  CHECK_FALSE(seen.expired());

  bench.run();

  CHECK(seen.expired());
}

TEST_CASE("KvSalt_OfDifferentAdaptersOrPlaces_Differs") {
  const std::vector<std::string> salts = {
      kv_salt("", {}),
      kv_salt("a", {}),
      kv_salt("", std::vector<AdapterSpan>{{.first = 0, .adapter = adapter(1)}}),
      kv_salt("", std::vector<AdapterSpan>{{.first = 0, .adapter = adapter(11)}}),
      kv_salt("", std::vector<AdapterSpan>{{.first = 1, .adapter = adapter(1)}}),
      kv_salt("a", std::vector<AdapterSpan>{{.first = 0, .adapter = adapter(1)}}),
      kv_salt("", std::vector<AdapterSpan>{{.first = 0, .adapter = adapter(1)}, {.first = 1, .adapter = adapter(1)}})};
  for (std::size_t i = 0; i < salts.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK(salts[i] != salts[j]);
  }
}

}  // namespace
}  // namespace genai::engine
