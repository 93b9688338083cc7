#pragma once

#include "genai/kernels/element_kind.h"
#include "genai/kernels/nbits_weights.h"
#include "genai/kernels/packed_store.h"
#include "genai/ort/custom_op.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

// What a node MatMulNBits says: its attributes and constants. docs/design/kernels.md has the operator's contract.
namespace genai::kernels {

constexpr std::size_t kMatMulParts = 3;
/// Inputs of a part, from input 1 on: codes, scales, zero points, bias.
constexpr std::size_t kMatMulPartPorts = 4;

/// Inputs behind those of the parts.
enum MatMulPort : std::size_t {
  kPromptRowsPort = 1 + kMatMulParts * kMatMulPartPorts,
  kHandedPort,
  kNormWeightPort,
  kSkipPort,
};
/// Outputs behind those of the parts.
enum MatMulOutput : std::size_t { kHandedOutput = kMatMulParts, kSumOutput };

struct MatMulAttributes {
  std::int64_t depth = 0;
  std::array<std::int64_t, kMatMulParts> columns{};
  int bits = 4;
  std::int64_t block = 32;
  NBitsLayout layout = NBitsLayout::kBlocks;
  bool is_signed = false;
  std::int64_t stored_columns = 0;
  std::array<std::int64_t, kMatMulParts> first{};
  bool exact = false;
  bool swiglu = false;
  std::int64_t handed_block = 0;
  bool normalises = false;
  float norm_epsilon = 0.0F;
  bool has_skip = false;

  std::size_t num_parts = 0;

  /// Throws kInvalidArgument where they do not fit each other; so do the next, if constants do not fit these.
  static MatMulAttributes read(const ort::KernelInfo& info);
};

/// One of the matrices.
struct MatMulPart {
  std::shared_ptr<const PackedWeights> weights;
  std::int64_t matrix = 0;  ///< which one of the weights: with swiglu both parts share them
  std::vector<float> bias;  ///< [panels][32], or empty

  std::int64_t panels() const { return weights->panels(); }
  PanelView panel(std::int64_t index) const { return weights->panel(index, matrix); }
  const float* panel_bias(std::int64_t panel) const {
    return bias.empty() ? nullptr : bias.data() + panel * kPanelColumns;
  }

  /// Packs the constants of all parts, or takes them from `store` unless it is null. `io`: type of activations, scales
  /// and bias.
  static std::vector<MatMulPart> read_all(const ort::KernelInfo& info, const MatMulAttributes& attributes,
                                          ElementKind io, PackedStore* store);
};

/// Weight of the norm as float32, [K]; empty if the node does not normalise.
std::vector<float> read_norm_weight(const ort::KernelInfo& info, const MatMulAttributes& attributes, ElementKind io);

}  // namespace genai::kernels
