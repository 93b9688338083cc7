#include "genai/runner/kv_layout.h"

#include "genai/base/error.h"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace genai::runner {
namespace {

KvPair pair_of(std::vector<std::int64_t> dims, int batch_axis, int sequence_axis) {
  return {.past = "past.0.key",
          .present = "present.0.key",
          .dtype = DType::kFloat32,
          .dims = std::move(dims),
          .batch_axis = batch_axis,
          .sequence_axis = sequence_axis};
}

std::byte* bytes(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

}  // namespace

TEST_CASE("KvLayout_SymbolicAxes_AreOnlyBatchAndSequence") {
  const KvLayout layout(pair_of({-1, 3, -1, 64}, 0, 2), "/m.onnx");
  const KvLayout fixed(pair_of({1, 2048, 192}, 0, 1), "/m.onnx");

  CHECK(layout.dims(4, 10) == Dims{4, 3, 10, 64});
  CHECK(layout.bytes_per_position() == 3 * 64 * 4);
  CHECK(layout.fixed_batch() == 0);
  CHECK(layout.fixed_positions() == 0);
  CHECK(fixed.fixed_batch() == 1);
  CHECK(fixed.fixed_positions() == 2048);
}

TEST_CASE("KvLayout_UnknownHeadSizeOrAxesInTheWrongOrder_IsABadPackage") {
  CHECK_THROWS_WITH_AS(KvLayout(pair_of({-1, 3, -1, -1}, 0, 2), "/m.onnx"),
                       doctest::Contains("input \"past.0.key\" has no fixed size in axis 3"), Error);
  CHECK_THROWS_AS(KvLayout(pair_of({-1, 3, -1, 8}, 2, 0), "/m.onnx"), Error);
  CHECK_THROWS_AS(KvLayout(pair_of({-1, 3, -1, 8}, 0, 4), "/m.onnx"), Error);
}

TEST_CASE("KvLayout_PackedTensor_CopiesAndClearsOneRow") {
  // [2, batch, 2 heads, positions, 1 value]: element = index in the tensor.
  const KvLayout layout(pair_of({2, -1, 2, -1, 1}, 1, 3), "/m.onnx");
  std::vector<float> from(2 * 2 * 2 * 3);
  std::iota(from.begin(), from.end(), 0.0F);
  std::vector<float> to(2 * 1 * 2 * 4, -1.0F);

  CHECK_FALSE(layout.rows_are_contiguous());
  layout.copy({bytes(from), 2, 3, 1, 1}, {bytes(to), 1, 4, 0, 2}, 2);

  CHECK(to == std::vector<float>{-1, -1, 7, 8, -1, -1, 10, 11, -1, -1, 19, 20, -1, -1, 22, 23});

  layout.clear({bytes(to), 1, 4, 0, 0}, 3);

  CHECK(to == std::vector<float>{0, 0, 0, 8, 0, 0, 0, 11, 0, 0, 0, 20, 0, 0, 0, 23});
}

TEST_CASE("KvLayout_NoPositions_CopiesNothing") {
  const KvLayout layout(pair_of({-1, 2, -1, 1}, 0, 2), "/m.onnx");
  std::vector<float> to(8, -1.0F);

  layout.copy({}, {bytes(to), 1, 4, 0, 0}, 0);
  layout.clear({bytes(to), 1, 4, 0, 4}, 0);

  CHECK(to == std::vector<float>(8, -1.0F));
}

}  // namespace genai::runner
