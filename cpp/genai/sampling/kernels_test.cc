#include "genai/sampling/kernels.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace genai::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// 0, 1, and one below, at and above a register, a block and a chunk of scan_row.
constexpr std::size_t kSizes[] = {0,  1,  2,  3,   7,   8,    9,    15,   16,   17,  31,
                                  63, 64, 65, 127, 129, 1000, 4095, 4096, 4097, 9001};

/// Values after `offset` unused ones, so that a row starts at any alignment.
std::vector<float> random_values(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 8.0F);
  std::vector<float> values(size);
  for (float& value : values) {
    value = normal(random);
    if (random() % 11 == 0) value = -kInfinity;
    if (random() % 13 == 0) value = 3.0F;  // ties
  }
  return values;
}

RowScan scan_by_hand(std::span<const float> values) {
  RowScan scan{.max = -kInfinity, .min = kInfinity};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) scan.has_nan = true;
    if (values[i] > scan.max) {
      scan.max = values[i];
      scan.argmax = static_cast<TokenId>(i);
    }
    if (values[i] > -kInfinity && values[i] < scan.min) scan.min = values[i];
  }
  scan.has_pos_inf = scan.max == kInfinity;
  return scan;
}

void check_equal(const RowScan& got, const RowScan& want) {
  CHECK(got.argmax == want.argmax);
  CHECK(got.max == want.max);
  CHECK(got.min == want.min);
  CHECK(got.has_nan == want.has_nan);
  CHECK(got.has_pos_inf == want.has_pos_inf);
}

std::vector<Isa> wide_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (is_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

TEST_CASE("ScanRow_AnySizeAndAlignment_EqualsPlainLoop") {
  for (const std::size_t size : kSizes) {
    for (const std::size_t offset : {0U, 1U, 3U}) {
      const std::vector<float> values = random_values(size + offset, static_cast<std::uint32_t>(size));
      const std::span<const float> row = std::span(values).subspan(offset);

      check_equal(scan_row(row), scan_by_hand(row));
    }
  }
}

TEST_CASE("ScanRow_SpecialValueAtAnyPlace_IsSeen") {
  for (std::size_t place = 0; place < 131; ++place) {
    for (const float special : {kNaN, kInfinity, -kInfinity, 100.0F}) {
      std::vector<float> row = random_values(131, 5);
      row[place] = special;

      check_equal(scan_row(row), scan_by_hand(row));
    }
  }
}

TEST_CASE("ScanRow_NothingButNaNOrMinusInf_HasNoNumber") {
  for (const float value : {kNaN, -kInfinity}) {
    const std::vector<float> row(100, value);

    const RowScan scan = scan_row(row);

    CHECK(scan.argmax == 0);
    CHECK(scan.max == -kInfinity);
    CHECK(scan.min == kInfinity);
    CHECK(scan.has_nan == std::isnan(value));
  }
}

TEST_CASE("ScanRow_Ties_GivesLowestId") {
  std::vector<float> row(5000, 1.0F);
  row[4800] = row[4300] = row[70] = 2.0F;

  CHECK(scan_row(row).argmax == 70);
}

TEST_CASE("Kernels_AnySizeAndAlignment_EqualPlainOnesToTheBit") {
  const Kernels& plain = kernels(Isa::kPlain);
  for (const Isa isa : wide_isas()) {
    const Kernels& wide = kernels(isa);
    for (const std::size_t size : kSizes) {
      for (const std::size_t offset : {0U, 1U, 5U}) {
        std::vector<float> values = random_values(size + offset, static_cast<std::uint32_t>(size) + 99);
        if (size > 2) values[offset + size / 2] = kNaN;
        const float* row = values.data() + offset;
        std::vector<float> want_max(num_blocks(size)), got_max(num_blocks(size));
        std::vector<float> want_sums(num_blocks(size)), got_sums(num_blocks(size));
        std::vector<float> want_exp(size), got_exp(size);

        const RowScan want = plain.scan(row, size, want_max.data());
        const RowScan got = wide.scan(row, size, got_max.data());
        plain.sum_exp_blocks(row, size, 20.0F, 0.7F, want_sums.data());
        wide.sum_exp_blocks(row, size, 20.0F, 0.7F, got_sums.data());
        plain.exp_values(row, size, 20.0F, 0.7F, want_exp.data());
        wide.exp_values(row, size, 20.0F, 0.7F, got_exp.data());

        check_equal(got, want);
        CHECK(got_max == want_max);
        for (std::size_t b = 0; b < num_blocks(size); ++b) CHECK(bits(got_sums[b]) == bits(want_sums[b]));
        for (std::size_t i = 0; i < size; ++i) CHECK(bits(got_exp[i]) == bits(want_exp[i]));
      }
    }
  }
}

TEST_CASE("ExpOf_WholeRange_IsWithinTwoUlpOfTheTruth") {
  double worst = 0.0;
  for (double x = -87.0; x <= 88.0; x += 1.0 / 1024.0) {
    const double want = std::exp(x);
    const double error = std::abs(static_cast<double>(exp_of(static_cast<float>(x))) - want) / want;
    worst = std::max(worst, error);
  }

  CHECK(worst < 2.0 * std::numeric_limits<float>::epsilon());
}

TEST_CASE("ExpOf_BelowRangeOrNaN_IsZero") {
  CHECK(exp_of(0.0F) == 1.0F);
  CHECK(exp_of(-87.1F) == 0.0F);
  CHECK(exp_of(-kInfinity) == 0.0F);
  CHECK(exp_of(kNaN) == 0.0F);
}

TEST_CASE("BestIsaWithin_EachLimit_IsTheWidestSupportedBelowIt") {
  const Isa avx2 = is_supported(Isa::kAvx2) ? Isa::kAvx2 : Isa::kPlain;
  const Isa widest = is_supported(Isa::kAvx512) ? Isa::kAvx512 : avx2;

  for (const char* limit : {"plain", "neon", "neondot", "neoni8mm"}) CHECK(best_isa_within(limit) == Isa::kPlain);
  for (const char* limit : {"avx2", "avxvnni"}) CHECK(best_isa_within(limit) == avx2);
  for (const char* limit : {"", "avx512", "avx512vnni", "avx512bf16", "amx"}) CHECK(best_isa_within(limit) == widest);
}

TEST_CASE("SumExpBlocks_RandomRow_EqualsFloat64Sum") {
  const std::vector<float> row = random_values(50000, 3);
  std::vector<float> sums(num_blocks(row.size()));
  double want = 0.0;
  for (const float value : row) want += std::exp((static_cast<double>(value) - 30.0) * 0.5);

  kernels(best_isa()).sum_exp_blocks(row.data(), row.size(), 30.0F, 0.5F, sums.data());

  // 2 ulp for exp, |x| * ulp / 2 for its rounded argument (|x| < 35), 6 additions of halves of an ulp.
  const double tolerance = (2.0 + 35.0 / 2 + 3.0) * std::numeric_limits<float>::epsilon();
  CHECK(std::abs(sum_of_blocks(sums) - want) / want < tolerance);
}

}  // namespace
}  // namespace genai::sampling
