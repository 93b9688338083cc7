#include "genai/kernels/matmul_node.h"

#include "genai/base/error.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace genai::kernels {
namespace {

[[noreturn]] void refuse(const ort::KernelInfo& info, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "MatMulNBits " + info.node_name() + ": " + what);
}

template <typename T>
std::span<const T> elements(const ort::KernelTensor& tensor) {
  if (!tensor.present()) return {};
  return {tensor.as<const T>(), static_cast<std::size_t>(tensor.dims.num_elements())};
}

/// The constant as float32, with zeros behind its end up to `padded` elements.
std::vector<float> read_floats(const ort::KernelTensor& tensor, ElementKind io, std::int64_t padded) {
  std::vector<float> values(static_cast<std::size_t>(padded), 0.0F);
  for (std::int64_t i = 0; i < tensor.dims.num_elements(); ++i) {
    values[static_cast<std::size_t>(i)] =
        io == ElementKind::kFloat16 ? to_float(tensor.as<const Half>()[i]) : tensor.as<const float>()[i];
  }
  return values;
}

void check_handed(const MatMulAttributes& a, const ort::KernelInfo& info) {
  if (a.handed_block == 0) return;
  const bool is_block = a.handed_block == 16 || (a.handed_block > 0 && a.handed_block % kChunkDepth == 0);
  if (!a.swiglu || a.exact || !is_block || a.columns[0] % std::max(a.handed_block, kChunkDepth) != 0) {
    refuse(info, "handed_block needs swiglu, accuracy_level 4, and N of whole blocks of 16 or a multiple of 32");
  }
}

/// Inputs of part `index` begin here.
std::size_t first_port(std::size_t index) {
  return 1 + index * kMatMulPartPorts;
}

NBitsWeights read_weights(const ort::KernelInfo& info, const MatMulAttributes& attributes, ElementKind io,
                          std::size_t index) {
  const std::size_t port = first_port(index);
  const ort::KernelTensor codes = info.constant(port);
  const ort::KernelTensor scales = info.constant(port + 1);
  if (!codes.present() || !scales.present()) refuse(info, "B and scales must be constants");
  NBitsWeights weights;
  weights.depth = attributes.depth;
  weights.columns = attributes.columns[index];
  weights.bits = attributes.bits;
  weights.block = attributes.block;
  weights.layout = attributes.layout;
  weights.is_signed = attributes.is_signed;
  weights.stored_columns = attributes.stored_columns;
  weights.first = attributes.first[index];
  weights.codes = elements<std::uint8_t>(codes);
  if (io == ElementKind::kFloat16) {
    weights.scales16 = elements<std::uint16_t>(scales);
  } else {
    weights.scales = elements<float>(scales);
  }
  weights.zero_points = elements<std::uint8_t>(info.constant(port + 2));
  weights.validate(info.node_name());
  return weights;
}

std::vector<float> read_bias(const ort::KernelInfo& info, const MatMulAttributes& attributes, ElementKind io,
                             std::size_t index) {
  const ort::KernelTensor bias = info.constant(first_port(index) + 3);
  if (!bias.present()) return {};
  const std::int64_t columns = attributes.columns[index];
  if (bias.dims.num_elements() != columns) refuse(info, "a bias must have N elements");
  return read_floats(bias, io, (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns);
}

}  // namespace

MatMulAttributes MatMulAttributes::read(const ort::KernelInfo& info) {
  constexpr std::int64_t kInt8Activations = 4;
  MatMulAttributes a;
  a.depth = info.integer("K", 0);
  a.columns = {info.integer("N", 0), info.integer("N_1", 0), info.integer("N_2", 0)};
  a.bits = static_cast<int>(info.integer("bits", 4));
  a.block = info.integer("block_size", 32);
  a.layout = static_cast<NBitsLayout>(info.integer("b_layout", 0));
  a.is_signed = info.integer("b_signed", 0) != 0;
  a.stored_columns = info.integer("b_columns", 0);
  a.first = {info.integer("b_first", 0), info.integer("b_first_1", 0), info.integer("b_first_2", 0)};
  a.exact = info.integer("accuracy_level", 0) != kInt8Activations;
  a.swiglu = info.integer("swiglu", 0) != 0;
  a.handed_block = info.integer("handed_block", 0);
  a.norm_epsilon = info.number("norm_epsilon", -1.0F);
  a.normalises = a.norm_epsilon >= 0.0F;
  a.has_skip = info.integer("norm_skip", 0) != 0;
  while (a.num_parts < kMatMulParts && a.columns[a.num_parts] > 0) ++a.num_parts;
  if (a.num_parts == 0) refuse(info, "N must be at least 1");
  if (a.swiglu && (a.num_parts != 2 || a.columns[0] != a.columns[1])) {
    refuse(info, "swiglu needs two matrices with the same N");
  }
  if (a.has_skip && !a.normalises) refuse(info, "norm_skip needs norm_epsilon");
  check_handed(a, info);
  return a;
}

std::vector<MatMulPart> MatMulPart::read_all(const ort::KernelInfo& info, const MatMulAttributes& attributes,
                                             ElementKind io, PackedStore* store) {
  std::vector<NBitsWeights> sources;
  for (std::size_t p = 0; p < attributes.num_parts; ++p) sources.push_back(read_weights(info, attributes, io, p));
  // Gate and up are read in turn.
  const std::size_t together = attributes.swiglu ? sources.size() : 1;
  std::vector<MatMulPart> parts;
  for (std::size_t p = 0; p < sources.size(); ++p) {
    MatMulPart part;
    part.matrix = static_cast<std::int64_t>(p % together);
    if (part.matrix > 0) {
      part.weights = parts.back().weights;
    } else {
      const NBitsMatrices some = std::span(sources).subspan(p, together);
      part.weights = store == nullptr ? packed_weights(some, attributes.exact) : store->get(some, attributes.exact);
    }
    part.bias = read_bias(info, attributes, io, p);
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<float> read_norm_weight(const ort::KernelInfo& info, const MatMulAttributes& attributes, ElementKind io) {
  if (!attributes.normalises) return {};
  const ort::KernelTensor weight = info.constant(kNormWeightPort);
  if (!weight.present() || weight.dims.num_elements() != attributes.depth) {
    refuse(info, "norm_epsilon needs a norm_weight that is a constant of K elements");
  }
  return read_floats(weight, io, attributes.depth);
}

}  // namespace genai::kernels
