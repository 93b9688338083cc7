#include "genai/engine/bitmask_worker.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

namespace genai::engine {
namespace {

/// Allows the token that it is told, or fails.
class OneTokenMatcher final : public TokenMatcher {
 public:
  explicit OneTokenMatcher(TokenId token) : token_(token) {}
  void fill_bitmask(std::span<std::uint32_t> bitmask) override {
    if (token_ < 0) throw std::runtime_error("no grammar");
    for (std::uint32_t& word : bitmask) word = 0;
    bitmask[static_cast<std::size_t>(token_) / 32] |= std::uint32_t{1} << (token_ % 32);
  }
  void accept(std::span<const TokenId> /*tokens*/) override {}
  std::unique_ptr<TokenMatcher> clone() const override { return std::make_unique<OneTokenMatcher>(*this); }
  void rollback(std::int64_t /*count*/) override {}
  std::vector<TokenId> forced_tokens() override { return {}; }
  bool can_end() override { return true; }
  bool must_end() override { return false; }

 private:
  TokenId token_;
};

}  // namespace

TEST_CASE("every job is done when finish() returns, again and again") {
  Tracer tracer;
  BitmaskWorker worker(tracer.thread(TraceThread::kGrammar));
  worker.finish();
  for (std::size_t round = 0; round < 300; ++round) {
    const std::size_t count = round % 9;
    std::vector<OneTokenMatcher> matchers;
    for (std::size_t i = 0; i < count; ++i) matchers.emplace_back(static_cast<TokenId>(i * 7));
    std::vector<std::array<std::uint32_t, 2>> masks(count, {~0U, ~0U});
    std::vector<BitmaskJob> jobs(count);
    for (std::size_t i = 0; i < count; ++i) jobs[i] = {.matcher = &matchers[i], .bitmask = masks[i], .error = {}};
    worker.begin(jobs);
    worker.finish();
    for (std::size_t i = 0; i < count; ++i) {
      CHECK_FALSE(jobs[i].error);
      CHECK(masks[i][i * 7 / 32] == std::uint32_t{1} << (i * 7 % 32));
      CHECK(masks[i][1 - i * 7 / 32] == 0);
    }
  }
}

TEST_CASE("a job that fails does not touch the others") {
  Tracer tracer;
  BitmaskWorker worker(tracer.thread(TraceThread::kGrammar));
  std::array<OneTokenMatcher, 3> matchers = {OneTokenMatcher(1), OneTokenMatcher(-1), OneTokenMatcher(3)};
  std::array<std::array<std::uint32_t, 1>, 3> masks{};
  std::vector<BitmaskJob> jobs(3);
  for (std::size_t i = 0; i < 3; ++i) jobs[i] = {.matcher = &matchers[i], .bitmask = masks[i], .error = {}};
  worker.begin(jobs);
  worker.finish();
  CHECK(masks[0][0] == 2);
  CHECK(masks[2][0] == 8);
  REQUIRE(jobs[1].error);
  CHECK(jobs[1].error->code() == ErrorCode::kInternal);
}

TEST_CASE("the thread is known as long as it is there") {
  Tracer tracer;
  std::shared_ptr<const std::atomic<std::thread::id>> id;
  {
    BitmaskWorker worker(tracer.thread(TraceThread::kGrammar));
    id = worker.thread_id();
    CHECK(id->load() == std::thread::id());

    std::atomic<std::thread::id> seen;
    struct Looks final : TokenMatcher {
      std::atomic<std::thread::id>& seen;
      const std::atomic<std::thread::id>& told;
      Looks(std::atomic<std::thread::id>& where, const std::atomic<std::thread::id>& known)
          : seen(where), told(known) {}
      void fill_bitmask(std::span<std::uint32_t> /*bitmask*/) override {
        if (told.load() == std::this_thread::get_id()) seen = std::this_thread::get_id();
      }
      void accept(std::span<const TokenId> /*tokens*/) override {}
      std::unique_ptr<TokenMatcher> clone() const override { return nullptr; }
      void rollback(std::int64_t /*count*/) override {}
      std::vector<TokenId> forced_tokens() override { return {}; }
      bool can_end() override { return true; }
      bool must_end() override { return false; }
    } matcher(seen, *id);
    while (seen.load() == std::thread::id()) {  // the caller may be quicker
      std::array<BitmaskJob, 1> jobs{BitmaskJob{.matcher = &matcher, .bitmask = {}, .error = {}}};
      worker.begin(jobs);
      std::this_thread::yield();
      worker.finish();
    }
    CHECK(seen.load() != std::this_thread::get_id());
    CHECK(id->load() == seen.load());
  }
  CHECK(id->load() == std::thread::id());
}

}  // namespace genai::engine
