#include "genai/kv/prefix_key.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

namespace genai::kv {
namespace {

using Tokens = std::vector<TokenId>;

// Computed from the definition in the header with Python's integers (3.11, 2026-11), salt and words by int.from_bytes.
TEST_CASE("Keys_EqualTheirDefinition") {
  const PrefixKey empty = root_key("");
  const PrefixKey first = child_key(empty, Tokens{1, 2, 3, 4});

  CHECK(empty == PrefixKey{.low = 0xDF11EFDA8CD904FAU, .high = 0x0B56A986A4BDB186U});
  CHECK(root_key("adapter:a/media\xff") == PrefixKey{.low = 0x9AD4880EEFEC8E4EU, .high = 0x52F59E3211987C8DU});
  CHECK(first == PrefixKey{.low = 0xB7D31F7A356EF7DDU, .high = 0x0CF9212B3B9618D4U});
  CHECK(child_key(first, Tokens{-1, 0, 151643}) == PrefixKey{.low = 0xA6E138D31DB71B01U, .high = 0xC32AB340394BD001U});
}

TEST_CASE("Salts_ThatLookAlike_HaveDifferentKeys") {
  std::unordered_set<std::uint64_t> low;
  std::unordered_set<std::uint64_t> high;
  std::size_t num_salts = 0;
  for (std::size_t size = 0; size < 40; ++size) {
    for (const char fill : {'\0', '\1', 'a', '\x80'}) {
      const std::string salt(size, fill);
      if (size == 0 && fill != '\0') continue;
      low.insert(root_key(salt).low);
      high.insert(root_key(salt).high);
      ++num_salts;
    }
  }

  CHECK(low.size() == num_salts);
  CHECK(high.size() == num_salts);
}

// 64-bit halves of so few keys collide with a chance of 100,000^2 / 2^65 < 1e-9.
TEST_CASE("Blocks_ThatLookAlike_HaveDifferentHalves") {
  std::unordered_set<std::uint64_t> low;
  std::unordered_set<std::uint64_t> high;
  std::size_t num_keys = 0;
  const auto add = [&](const PrefixKey& key) {
    low.insert(key.low);
    high.insert(key.high);
    ++num_keys;
  };
  const PrefixKey root = root_key("");
  for (TokenId i = 0; i < 50000; ++i) add(child_key(root, Tokens{i, 0, 0, 0}));
  for (TokenId i = 1; i < 20000; ++i) add(child_key(root, Tokens{0, 0, 0, i}));
  for (TokenId i = 1; i < 100; ++i) {
    for (TokenId k = 1; k < 100; ++k) add(child_key(root, Tokens{0, i, k, 0}));
  }
  for (std::size_t size = 1; size < 64; ++size) {
    if (size != 4) add(child_key(root, Tokens(size, 0)));
  }

  CHECK(low.size() == num_keys);
  CHECK(high.size() == num_keys);
}

TEST_CASE("LongChainOfEqualBlocks_KeysDoNotRepeat") {
  std::unordered_set<std::uint64_t> seen;
  PrefixKey key = root_key("");
  for (int i = 0; i < 20000; ++i) {
    seen.insert(key.low);
    key = child_key(key, Tokens(16, 0));
  }

  CHECK(seen.size() == 20000);
}

// Each output bit flips with chance 1/2 when an input bit does. 128 inputs bits, 400 blocks: a bit's count is binomial
// with sigma = sqrt(51200) / 2; among 128 output bits none should be 5.5 sigma away (chance 5e-6).
TEST_CASE("OneBitOfOneToken_FlipsHalfOfTheKey") {
  std::mt19937 random(3);
  std::array<int, 128> flips{};
  int num_trials = 0;
  for (int block = 0; block < 400; ++block) {
    Tokens tokens(4);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 150000);
    const PrefixKey before = child_key(root_key(""), tokens);
    for (std::size_t bit = 0; bit < 128; ++bit) {
      Tokens changed = tokens;
      changed[bit / 32] = std::bit_cast<TokenId>(std::bit_cast<std::uint32_t>(changed[bit / 32]) ^ (1U << (bit % 32)));
      const PrefixKey after = child_key(root_key(""), changed);
      ++num_trials;
      for (std::size_t i = 0; i < 64; ++i) {
        flips[i] += static_cast<int>(((before.low ^ after.low) >> i) & 1U);
        flips[64 + i] += static_cast<int>(((before.high ^ after.high) >> i) & 1U);
      }
    }
  }

  for (const int count : flips) CHECK(std::abs(count - num_trials / 2) < 5.5 * std::sqrt(num_trials) / 2);
}

}  // namespace
}  // namespace genai::kv
