#include "genai/kernels/attention.h"

#include "genai/kernels/vec_element.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace genai::kernels {
namespace {

constexpr float kEpsilon = 1.1920929e-7F;

/// One sequence in float32 caches whose blocks lie in reverse order.
struct Setting {
  AttentionShape shape;
  int past;
  int added;

  std::vector<float> query;
  std::vector<float> key;
  std::vector<float> value;
  std::vector<float> key_cache;
  std::vector<float> value_cache;
  std::vector<float> output;
  std::vector<std::int32_t> blocks;
  AttentionTensors tensors;

  Setting(const AttentionShape& given, int past_tokens, int new_tokens)
      : shape(given), past(past_tokens), added(new_tokens) {
    std::mt19937 random(5);
    std::normal_distribution<float> bell;
    const auto fill = [&](std::vector<float>& row, int size) {
      row.resize(static_cast<std::size_t>(size));
      for (float& x : row) x = bell(random);
    };
    const int total = past + added;
    const int count = (total + shape.block_size - 1) / shape.block_size;
    fill(query, added * shape.num_heads * shape.head_dim);
    fill(key, total * shape.kv_heads * shape.head_dim);
    fill(value, total * shape.kv_heads * shape.value_dim);
    for (int b = 0; b < count; ++b) blocks.push_back(count - 1 - b);
    const int slots = count * shape.block_size * shape.kv_heads;
    key_cache.assign(static_cast<std::size_t>(slots * shape.head_dim), std::nanf(""));
    value_cache.assign(static_cast<std::size_t>(slots * shape.value_dim), std::nanf(""));
    output.resize(static_cast<std::size_t>(added * shape.num_heads * shape.value_dim));
    refer();
  }

  /// Lets the tensors be those of this setting.
  void refer() {
    tensors.query = reinterpret_cast<const std::byte*>(query.data());
    tensors.key = reinterpret_cast<const std::byte*>(key.data());
    tensors.value = reinterpret_cast<const std::byte*>(value.data());
    tensors.query_stride = shape.num_heads * shape.head_dim;
    tensors.key_stride = shape.kv_heads * shape.head_dim;
    tensors.value_stride = shape.kv_heads * shape.value_dim;
    tensors.key_cache = reinterpret_cast<std::byte*>(key_cache.data());
    tensors.value_cache = reinterpret_cast<std::byte*>(value_cache.data());
    tensors.output = reinterpret_cast<std::byte*>(output.data());
  }

  void write(const AttentionKernels& kernels, std::vector<float>& scratch) {
    for (int token = 0; token < past + added; ++token) {
      const std::int64_t slot =
          std::int64_t{blocks[static_cast<std::size_t>(token / shape.block_size)]} * shape.block_size +
          token % shape.block_size;
      for (int head = 0; head < shape.kv_heads; ++head) {
        kernels.write_token(shape, tensors, {token, token, slot, head}, scratch.data());
      }
    }
  }

  /// All rows, in tiles of `tile_rows`; of prompts if the kernels are those.
  void attend(const AttentionKernels& kernels, int tile_rows, bool is_prompt = false) {
    const int room = is_prompt ? (tile_rows + kPromptRowStep - 1) / kPromptRowStep * kPromptRowStep : tile_rows;
    std::vector<float> scratch(scratch_floats(shape));
    std::vector<float> packed(is_prompt ? prompt_packed_floats(shape) : packed_floats(shape));
    std::vector<float> scores(is_prompt ? prompt_score_floats(shape) : kTileRows * kScoreStride);
    std::vector<float> total(Partial::size_floats(room, shape.padded_value_dim()));
    std::vector<float> next(total.size());
    write(kernels, scratch);
    const int rows = added * shape.group();
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (int row = 0; row < rows; row += tile_rows) {
        const QueryTile tile{blocks.data(), 0,        past, past + added, row, std::min(tile_rows, rows - row),
                             head,          is_prompt};
        kernels.pack_queries(shape, tensors, tile, packed.data(), scratch.data());
        const auto next_range = [&](int range) {
          return (range + 1) * kRangeKeys < past + added ? TileRange{&tile, range + 1} : TileRange{};
        };
        const Partial sum = Partial::in(total.data(), room);
        kernels.attend(shape, tensors, {&tile, 0}, next_range(0), packed.data(), scores.data(), sum);
        const Partial more = Partial::in(next.data(), room);
        for (int range = 1; range * kRangeKeys < past + added; ++range) {
          kernels.attend(shape, tensors, {&tile, range}, next_range(range), packed.data(), scores.data(), more);
          kernels.merge(shape, tile.num_rows, more, sum);
        }
        kernels.finish(shape, tensors, tile, sum, scratch.data());
      }
    }
  }

  /// The same by plain loops in double.
  std::vector<double> expected() const {
    std::vector<double> result(output.size());
    const int group = shape.group();
    for (int token = 0; token < added; ++token) {
      for (int head = 0; head < shape.num_heads; ++head) {
        std::vector<double> weights(static_cast<std::size_t>(past + token + 1));
        double largest = -1e300;
        for (std::size_t k = 0; k < weights.size(); ++k) {
          double dot = 0;
          for (int d = 0; d < shape.head_dim; ++d) {
            dot += static_cast<double>(query[at(token * shape.num_heads + head, shape.head_dim, d)]) *
                   static_cast<double>(key[at(static_cast<int>(k) * shape.kv_heads + head / group, shape.head_dim, d)]);
          }
          weights[k] = dot * static_cast<double>(shape.scale);
          largest = std::max(largest, weights[k]);
        }
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (int d = 0; d < shape.value_dim; ++d) {
          double weighted = 0;
          for (std::size_t k = 0; k < weights.size(); ++k) {
            weighted +=
                weights[k] *
                static_cast<double>(value[at(static_cast<int>(k) * shape.kv_heads + head / group, shape.value_dim, d)]);
          }
          result[at(token * shape.num_heads + head, shape.value_dim, d)] = weighted / sum;
        }
      }
    }
    return result;
  }

 private:
  static std::size_t at(int row, int width, int column) { return static_cast<std::size_t>(row * width + column); }
};

AttentionShape shape_of(int num_heads, int kv_heads, int head_dim, int value_dim) {
  AttentionShape shape;
  shape.num_heads = num_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.value_dim = value_dim;
  shape.block_size = 16;
  shape.scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  return shape;
}

TEST_CASE("AttentionKernels_OddShapes_EqualPlainLoopsInDouble") {
  for (const Isa isa : supported_isas()) {
    CAPTURE(isa_name(isa));
    for (const auto& [heads, kv_heads, head_dim, value_dim, past, added] :
         {std::array{1, 1, 1, 1, 0, 1}, std::array{3, 1, 40, 17, 5, 9}, std::array{7, 1, 64, 64, 250, 13},
          std::array{14, 2, 80, 96, 31, 3}, std::array{4, 4, 33, 31, 300, 20}, std::array{12, 1, 16, 15, 0, 33}}) {
      CAPTURE(head_dim);
      Setting setting(shape_of(heads, kv_heads, head_dim, value_dim), past, added);

      setting.attend(attention_kernels(isa), kTileRows);

      const std::vector<double> expected = setting.expected();
      double worst = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double difference = std::abs(static_cast<double>(setting.output[i]) - expected[i]);
        worst = std::max(worst, std::isnan(setting.output[i]) ? 1.0 : difference);
      }
      // Rounding of scores of about sqrt(head_dim) terms, and of weights and values of about 1.
      CHECK(worst < static_cast<double>(32 * kEpsilon) * std::sqrt(static_cast<double>(head_dim)));
    }
  }
}

TEST_CASE("AttentionKernels_TilesOfAnyHeight_GiveTheSameBits") {
  for (const Isa isa : supported_isas()) {
    CAPTURE(isa_name(isa));
    Setting whole(shape_of(3, 1, 40, 40), 270, 17);
    whole.attend(attention_kernels(isa), kTileRows);
    for (const int tile_rows : {1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 47}) {
      Setting setting(whole.shape, whole.past, whole.added);

      setting.attend(attention_kernels(isa), tile_rows);

      CAPTURE(tile_rows);
      CHECK(setting.output == whole.output);
    }
  }
}

TEST_CASE("PromptKernels_WholeTiles_EqualPlainLoopsInDouble") {
  for (const Isa isa : supported_isas()) {
    const AttentionKernels* const kernels = prompt_kernels(isa);
    if (kernels == nullptr) continue;
    for (const auto& [heads, kv_heads, head_dim, value_dim, past, added] :
         {std::array{1, 1, 16, 16, 0, 1}, std::array{3, 1, 80, 48, 5, 9}, std::array{7, 1, 64, 64, 250, 13},
          std::array{14, 2, 96, 128, 31, 30}, std::array{4, 4, 256, 32, 300, 20}, std::array{5, 1, 112, 112, 77, 8},
          std::array{1, 1, 48, 176, 511, 3}}) {
      CAPTURE(head_dim);
      Setting setting(shape_of(heads, kv_heads, head_dim, value_dim), past, added);
      REQUIRE(fits_prompt_kernels(setting.shape));

      setting.attend(*kernels, kPromptTileRows, true);

      const std::vector<double> expected = setting.expected();
      double worst = 0;
      double squares = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double difference = std::abs(static_cast<double>(setting.output[i]) - expected[i]);
        worst = std::max(worst, std::isnan(setting.output[i]) ? 1.0 : difference);
        squares += difference * difference;
      }
      // Operands of about 1 are off by up to 2^-9 each, in random directions; scores are of unit variance.
      CHECK(worst < 0x1p-4);
      CHECK(std::sqrt(squares / static_cast<double>(expected.size())) < 0x1p-8);
    }
  }
}

TEST_CASE("PromptKernels_TilesOfAnyHeight_GiveTheSameBits") {
  for (const Isa isa : supported_isas()) {
    const AttentionKernels* const kernels = prompt_kernels(isa);
    if (kernels == nullptr) continue;
    Setting whole(shape_of(3, 1, 48, 80), 270, 70);
    whole.attend(*kernels, kPromptTileRows, true);
    for (const int tile_rows : {1, 2, 15, 16, 17, 31, 32, 33, 100}) {
      Setting setting(whole.shape, whole.past, whole.added);

      setting.attend(*kernels, tile_rows, true);

      CAPTURE(tile_rows);
      CHECK(setting.output == whole.output);
    }
  }
}

TEST_CASE("PromptKernels_ASequenceInPieces_GivesTheSameBits") {
  for (const Isa isa : supported_isas()) {
    const AttentionKernels* const kernels = prompt_kernels(isa);
    if (kernels == nullptr) continue;
    AttentionShape shape = shape_of(3, 1, 80, 112);
    for (const int window : {0, 40}) {
      shape.window = window;
      Setting whole(shape, 0, 290);
      whole.attend(*kernels, kPromptTileRows, true);
      for (const int first : {1, 15, 16, 33, 254, 257, 289}) {
        // The last tokens, behind the others.
        Setting rest = whole;
        rest.past = first;
        rest.added = 290 - first;
        const auto skipped = static_cast<std::size_t>(first * shape.num_heads * shape.head_dim);
        rest.query.erase(rest.query.begin(), rest.query.begin() + static_cast<std::ptrdiff_t>(skipped));
        rest.refer();

        rest.attend(*kernels, 64, true);

        const auto before = static_cast<std::ptrdiff_t>(first * shape.num_heads * shape.value_dim);
        CAPTURE(first);
        CHECK(std::equal(whole.output.begin() + before, whole.output.end(), rest.output.begin()));
      }
    }
  }
}

TEST_CASE("PromptKernels_OtherShapes_AreNotTheirs") {
  CHECK(fits_prompt_kernels(shape_of(1, 1, 80, 16)));
  CHECK(!fits_prompt_kernels(shape_of(1, 1, 40, 16)));
  CHECK(!fits_prompt_kernels(shape_of(1, 1, 64, 15)));
  CHECK(!fits_prompt_kernels(shape_of(1, 1, 528, 64)));
}

TEST_CASE("PromptKernels_Isa_AreThoseOfProductsOfBfloat16") {
  CHECK(prompt_kernels(Isa::kPlain) == nullptr);
#if defined(__x86_64__)
  CHECK(prompt_kernels(Isa::kAvx512Vnni) == nullptr);
  CHECK((prompt_kernels(Isa::kAvx512Bf16)->attend == kPromptsAvx512Bf16.attend));
  CHECK((prompt_kernels(Isa::kAmx)->attend == kPromptsAmx.attend));
  CHECK(&attention_kernels(Isa::kAvx512Bf16) == &kAttentionAvx512Far);
#endif
}

TEST_CASE("Merge_RangeThatARowDoesNotSee_ChangesNothing") {
  const AttentionShape shape = shape_of(1, 1, 16, 16);
  for (const Isa isa : supported_isas()) {
    std::vector<float> seen(Partial::size_floats(1, 16), 0.3F);
    std::vector<float> unseen(Partial::size_floats(1, 16), 0.0F);
    Partial::in(unseen.data(), 1).max[0] = -INFINITY;
    std::vector<float> sum = seen;

    attention_kernels(isa).merge(shape, 1, Partial::in(unseen.data(), 1), Partial::in(sum.data(), 1));
    CHECK(sum == seen);

    sum = unseen;
    attention_kernels(isa).merge(shape, 1, Partial::in(seen.data(), 1), Partial::in(sum.data(), 1));
    CHECK(sum == seen);
  }
}

}  // namespace
}  // namespace genai::kernels
