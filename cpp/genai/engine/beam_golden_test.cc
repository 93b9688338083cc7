// Beam search through the whole engine against transformers; tests/golden/make_beams.py describes the file.

#include "genai/engine/test_bench.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace genai::engine {
namespace {

struct Expected {
  double score = 0.0;
  std::vector<TokenId> tokens;
};

struct Case {
  std::string name;
  std::map<std::string, std::vector<double>> args;
  std::vector<TokenId> prompt;
  std::vector<Expected> results;

  std::vector<TokenId> ids(const std::string& key) const {
    const auto it = args.find(key);
    if (it == args.end()) return {};
    return {it->second.begin(), it->second.end()};
  }
  template <typename Value>
  Value value(const std::string& key) const {
    return static_cast<Value>(args.at(key).at(0));
  }
};

template <typename Value>
std::vector<Value> read_all(std::istringstream& line) {
  std::vector<Value> values;
  for (Value value; line >> value;) values.push_back(value);
  return values;
}

std::vector<Case> read_cases() {
  std::ifstream file(GENAI_TESTS_DIR "/golden/beams.txt");
  REQUIRE(file.good());
  std::vector<Case> cases;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    line >> word;
    if (word == "case") {
      line >> cases.emplace_back().name;
    } else if (word == "arg") {
      line >> word;
      cases.back().args[word] = read_all<double>(line);
    } else if (word == "prompt") {
      cases.back().prompt = read_all<TokenId>(line);
    } else if (word == "result") {
      Expected& result = cases.back().results.emplace_back();
      line >> result.score;
      result.tokens = read_all<TokenId>(line);
    } else {
      REQUIRE(word == "end");
    }
  }
  return cases;
}

Request request_of(const Case& c) {
  Request request = greedy(c.prompt, c.value<std::int64_t>("max_new_tokens"));
  SamplingParams& params = request.params;
  params.num_beams = c.value<int>("num_beams");
  params.n = c.value<int>("n");
  params.length_penalty = c.value<float>("length_penalty");
  params.early_stopping = static_cast<EarlyStopping>(c.value<int>("early_stopping"));
  params.repetition_penalty = c.value<float>("repetition_penalty");
  params.no_repeat_ngram_size = c.value<std::int64_t>("no_repeat_ngram_size");
  params.min_new_tokens = c.value<std::int64_t>("min_new_tokens");
  params.suppress_tokens = c.ids("suppress_tokens");
  params.begin_suppress_tokens = c.ids("begin_suppress_tokens");
  if (c.args.contains("bad_word")) params.bad_words = {c.ids("bad_word")};
  return request;
}

template <typename Size>
void check_case(const Case& c, Size size, int max_num_seqs) {
  EngineOptions options;
  options.eos_ids = c.ids("eos_ids");
  options.scheduler.max_num_seqs = max_num_seqs;
  Bench bench(options, size);
  bench.add(1, request_of(c));

  bench.run();

  for (std::size_t rank = 0; rank < c.results.size(); ++rank) {
    const Collected& got = bench.out[{1, static_cast<int>(rank)}];
    CHECK(got.tokens == c.results[rank].tokens);
    REQUIRE(got.score);
    // Sums of negative numbers of the same sign: no digits cancel, so a few roundings of each log-probability (of at
    // most 8, and not below 1/4 on average) are all there is.
    const double eps = std::numeric_limits<float>::epsilon();
    CHECK(std::abs(*got.score - c.results[rank].score) <= 64.0 * eps * std::abs(c.results[rank].score));
  }
}

TEST_CASE("Beams_OverBlocksAndOverContiguousKv_EqualTransformers") {
  const std::vector<Case> cases = read_cases();
  REQUIRE(cases.size() == 160);
  for (const Case& c : cases) {
    CAPTURE(c.name);
    check_case(c, FakePagedSize{}, 64);
    check_case(c, FakeSize{}, 64);
    check_case(c, FakePagedSize{.num_hot_blocks = 9}, 5);  // one beam of the longest case fits, so beams are preempted
  }
}

}  // namespace
}  // namespace genai::engine
