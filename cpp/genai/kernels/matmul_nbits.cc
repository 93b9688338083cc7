#include "genai/kernels/matmul_nbits.h"

#include "genai/base/error.h"
#include "genai/kernels/matmul_work.h"
#include "genai/kernels/parallel.h"
#include "genai/kernels/vec_element.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <thread>

namespace genai::kernels {
namespace {

constexpr std::size_t kMaxParts = 3;
constexpr std::size_t kPartPorts = 4;
/// Most of a panel's bytes that a thread takes in one go when there are few rows: long enough to stream.
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
/// Below this work, in bytes of weights times rows, more threads cost more than they bring.
constexpr double kSmallWork = 64 << 10;
/// Elements of activations from which on several threads prepare them.
constexpr std::int64_t kManyElements = 32 << 10;

/// Input that says which rows are of prompts.
constexpr std::size_t kPromptRowsPort = 1 + kMaxParts * kPartPorts;

/// One of the matrices.
struct Part {
  std::shared_ptr<const PackedWeights> weights;
  std::vector<float> bias;  ///< [panels][32], or empty

  const float* panel_bias(std::int64_t panel) const {
    return bias.empty() ? nullptr : bias.data() + panel * kPanelColumns;
  }
};

struct Attributes {
  std::int64_t depth = 0;
  std::array<std::int64_t, kMaxParts> columns{};
  int bits = 4;
  std::int64_t block = 32;
  NBitsLayout layout = NBitsLayout::kBlocks;
  bool is_signed = false;
  std::int64_t stored_columns = 0;
  std::array<std::int64_t, kMaxParts> first{};
  bool exact = false;
  bool swiglu = false;

  static Attributes read(const ort::KernelInfo& info) {
    constexpr std::int64_t kInt8Activations = 4;
    Attributes a;
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
    return a;
  }
};

template <typename T>
std::span<const T> elements(const ort::KernelTensor& tensor) {
  if (!tensor.present()) return {};
  return {tensor.as<const T>(), static_cast<std::size_t>(tensor.dims.num_elements())};
}

[[noreturn]] void refuse(const std::string& node, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, std::string("MatMulNBits ") + node + ": " + what);
}

std::vector<float> read_bias(const ort::KernelTensor& tensor, ElementKind io, std::int64_t columns, std::int64_t panels,
                             const std::string& node) {
  if (!tensor.present()) return {};
  if (tensor.dims.num_elements() != columns) refuse(node, "a bias must have N elements");
  std::vector<float> bias(static_cast<std::size_t>(panels * kPanelColumns), 0.0F);
  for (std::int64_t i = 0; i < columns; ++i) {
    bias[static_cast<std::size_t>(i)] =
        io == ElementKind::kFloat16 ? to_float(tensor.as<const Half>()[i]) : tensor.as<const float>()[i];
  }
  return bias;
}

Part read_part(const ort::KernelInfo& info, const Attributes& attributes, ElementKind io, std::size_t index) {
  const std::size_t port = 1 + index * kPartPorts;
  const std::string node = info.node_name();
  const ort::KernelTensor codes = info.constant(port);
  const ort::KernelTensor scales = info.constant(port + 1);
  if (!codes.present() || !scales.present()) refuse(node, "B and scales must be constants");
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
  weights.validate(node);
  std::shared_ptr<const PackedWeights> packed = packed_weights(weights, attributes.exact);
  const std::int64_t panels = packed->panels();
  return {std::move(packed), read_bias(info.constant(port + 3), io, weights.columns, panels, node)};
}

class MatMulNBits final : public ort::OpKernel {
 public:
  MatMulNBits(const ort::KernelInfo& info, ElementKind io, std::shared_ptr<MatMulWorkPool> pool)
      : attributes_(Attributes::read(info)), io_(io), kernels_(matmul_kernels(chosen_isa())), pool_(std::move(pool)) {
    for (std::size_t p = 0; p < kMaxParts && attributes_.columns[p] > 0; ++p) {
      parts_.push_back(read_part(info, attributes_, io, p));
      panels_ += parts_.back().weights->panels();
      bytes_ += parts_.back().weights->bytes();
    }
    if (parts_.empty()) refuse(info.node_name(), "N must be at least 1");
    if (attributes_.swiglu) {
      if (parts_.size() != 2 || attributes_.columns[0] != attributes_.columns[1]) {
        refuse(info.node_name(), "swiglu needs two matrices with the same N");
      }
      panels_ = parts_.front().weights->panels();
    }
  }

  void compute(ort::KernelContext& context) const override {
    const ort::KernelTensor a = context.input(0);
    const std::size_t rank = a.dims.rank();
    if (rank == 0 || a.dims[rank - 1] != attributes_.depth) {
      throw Error(ErrorCode::kInvalidArgument, std::string("MatMulNBits: the last dimension of A must be K, ") +
                                                   std::to_string(attributes_.depth) + "; A is " + a.dims.text());
    }
    const std::int64_t rows = a.dims.num_elements() / attributes_.depth;
    std::array<std::byte*, kMaxParts> outputs{};
    for (std::size_t p = 0; p < (attributes_.swiglu ? 1 : parts_.size()); ++p) {
      Dims dims = a.dims;
      dims[rank - 1] = attributes_.columns[p];
      outputs[p] = context.output(p, dims).data;
    }
    if (rows == 0) return;
    const MatMulWorkPool::Loan work = pool_->take();
    const std::int32_t* const prompt_rows = has_tiles_ ? read_prompt_rows(context, rows) : nullptr;
    for (const bool bf16 : {false, true}) {
      const std::span<const std::int64_t> chosen = work->choose(prompt_rows, rows, bf16);
      if (!chosen.empty()) run(context, *work, a, outputs, chosen, bf16);
    }
  }

 private:
  /// What is computed in one way: some of the rows.
  struct Call {
    const ort::KernelContext& context;
    MatMulWork& work;
    const std::array<std::byte*, kMaxParts>& outputs;
    std::span<const std::int64_t> chosen;  ///< their places in A, ascending
    std::int64_t rows;                     ///< how many
    int threads;
    bool bf16;
    QuantizedRows quantized;
    const float* floats;
    Bf16Rows tiles;
  };

  /// One number for each row; nullptr if there is none, or not one for each (rows of something else than tokens).
  static const std::int32_t* read_prompt_rows(const ort::KernelContext& context, std::int64_t rows) {
    const ort::KernelTensor tensor = context.input(kPromptRowsPort);
    return tensor.present() && tensor.dims.num_elements() == rows ? tensor.as<const std::int32_t>() : nullptr;
  }

  void run(const ort::KernelContext& context, MatMulWork& work, const ort::KernelTensor& a,
           const std::array<std::byte*, kMaxParts>& outputs, std::span<const std::int64_t> chosen, bool bf16) const {
    Call call{context, work, outputs, chosen, std::ssize(chosen), 1, bf16, {}, nullptr, {}};
    const double cost = static_cast<double>(bytes_) * static_cast<double>(call.rows + 7) / 8;
    call.threads = cost < kSmallWork ? 1 : max_threads_;
    const std::int64_t results = bf16 ? kTilePanels : attributes_.swiglu ? 2 : 1;
    work.reserve_threads(call.threads, parts_.front().weights->panel(0).depth, results);
    prepare(call, a);
    multiply(call);
  }

  std::size_t element_bytes() const { return io_ == ElementKind::kFloat16 ? 2 : 4; }

  /// Brings the activations into the form that the kernels read.
  void prepare(Call& call, const ort::KernelTensor& a) const {
    const PanelView shape = parts_.front().weights->panel(0);
    const std::size_t row_bytes = static_cast<std::size_t>(attributes_.depth) * element_bytes();
    const bool ready = io_ == ElementKind::kFloat32 && attributes_.depth == shape.depth;
    float* floats = nullptr;
    if (attributes_.exact) {
      if (ready) {  // exact products never leave rows out
        call.floats = a.as<const float>();
        return;
      }
      call.floats = floats = call.work.floats(call.rows, shape.depth);
    } else if (call.bf16) {
      call.tiles = call.work.bf16(call.rows, shape);
    } else {
      call.quantized = call.work.quantized(call.rows, shape);
    }
    const std::int64_t elements = call.rows * shape.depth;
    run_all(call.context, static_cast<std::size_t>(call.rows), elements < kManyElements ? 1 : call.threads,
            [&](std::size_t index, int thread) {
              const std::byte* const from = a.data + static_cast<std::size_t>(call.chosen[index]) * row_bytes;
              const auto row = static_cast<std::int64_t>(index);
              const float* x = reinterpret_cast<const float*>(from);
              if (!ready) {
                float* const to = floats == nullptr ? call.work.thread(thread).row : floats + row * shape.depth;
                kernels_.load_row(io_, from, attributes_.depth, shape.depth, to);
                x = to;
              }
              if (call.bf16) {
                kernels_.load_row_bf16(x, shape, row, call.tiles);
              } else if (floats == nullptr) {
                kernels_.quantize_row(x, shape.steps(), shape.step_depth(), row, call.quantized);
              }
            });
  }

  void multiply(const Call& call) const {
    const std::int64_t blocks = (call.rows + kRowBlock - 1) / kRowBlock;
    const std::int64_t group = panels_at_once(call, blocks);
    const std::int64_t groups = (panels_ + group - 1) / group;
    run_all(call.context, static_cast<std::size_t>(groups * blocks), call.threads, [&](std::size_t index, int thread) {
      const std::int64_t first_row = static_cast<std::int64_t>(index) / groups * kRowBlock;
      const std::int64_t first = static_cast<std::int64_t>(index) % groups * group;
      const std::int64_t end = std::min(panels_, first + group);
      const std::int64_t count = std::min(kRowBlock, call.rows - first_row);
      const MatMulWork::Thread memory = call.work.thread(thread);
      if (call.bf16) return multiply_tiles(call, memory, first, end, first_row, count);
      for (std::int64_t panel = first; panel < end; ++panel) multiply_panel(call, memory, panel, first_row, count);
    });
  }

  /// How many of panels_ a thread takes in one go.
  std::int64_t panels_at_once(const Call& call, std::int64_t blocks) const {
    if (call.bf16) {
      const std::int64_t most = attributes_.swiglu ? kTilePanels / 2 : kTilePanels;
      return std::clamp<std::int64_t>((panels_ - 1) / (std::int64_t{2} * call.threads) + 1, 1, most);
    }
    if (blocks > 1) return 1;
    const std::size_t panel_bytes = parts_.front().weights->panel_bytes() * static_cast<std::size_t>(call.rows + 7) / 8;
    const auto most = static_cast<std::int64_t>(std::max<std::size_t>(1, kPieceBytes / panel_bytes));
    return std::clamp<std::int64_t>(panels_ / (std::int64_t{4} * call.threads), 1, most);
  }

  /// A panel of one of the parts.
  struct Place {
    std::size_t part;
    std::int64_t panel;
  };
  /// `panel` counts over the panels of all parts.
  Place locate(std::int64_t panel) const {
    std::size_t part = 0;
    for (; panel >= parts_[part].weights->panels(); ++part) panel -= parts_[part].weights->panels();
    return {part, panel};
  }

  void multiply_tiles(const Call& call, const MatMulWork::Thread& memory, std::int64_t first, std::int64_t end,
                      std::int64_t first_row, std::int64_t count) const {
    std::array<PanelView, kTilePanels> views;
    const auto num = static_cast<std::size_t>(end - first);
    const std::span<const PanelView> used(views.data(), attributes_.swiglu ? 2 * num : num);
    for (std::size_t i = 0; i < num; ++i) {
      const std::int64_t panel = first + static_cast<std::int64_t>(i);
      const Place place = attributes_.swiglu ? Place{0, panel} : locate(panel);
      views[i] = parts_[place.part].weights->panel(place.panel);
      if (attributes_.swiglu) views[num + i] = parts_[1].weights->panel(panel);
    }
    kernels_.multiply_bf16(used, call.tiles, first_row, count, memory.results, memory.scratch);
    const auto result =
        static_cast<std::size_t>((count + Bf16Rows::kGroup - 1) / Bf16Rows::kGroup * Bf16Rows::kGroup * kPanelColumns);
    for (std::size_t i = 0; i < num; ++i) {
      const std::int64_t panel = first + static_cast<std::int64_t>(i);
      if (attributes_.swiglu) {
        store(call, {1, panel}, memory.results + (num + i) * result, memory.results + i * result, first_row, count);
      } else {
        store(call, locate(panel), memory.results + i * result, nullptr, first_row, count);
      }
    }
  }

  void multiply_rows(const Call& call, const Place& place, std::int64_t first_row, std::int64_t count, float* out,
                     std::byte* scratch) const {
    const PanelView view = parts_[place.part].weights->panel(place.panel);
    if (attributes_.exact) {
      kernels_.multiply_exact(view, call.floats + first_row * view.depth, view.depth, count, out, scratch);
    } else {
      kernels_.multiply(view, call.quantized, first_row, count, out, scratch);
    }
  }

  void multiply_panel(const Call& call, const MatMulWork::Thread& memory, std::int64_t panel, std::int64_t first_row,
                      std::int64_t count) const {
    const Place place = attributes_.swiglu ? Place{1, panel} : locate(panel);
    float* gate = nullptr;
    if (attributes_.swiglu) {
      gate = memory.results + kRowBlock * kPanelColumns;
      multiply_rows(call, {0, panel}, first_row, count, gate, memory.scratch);
    }
    multiply_rows(call, place, first_row, count, memory.results, memory.scratch);
    store(call, place, memory.results, gate, first_row, count);
  }

  /// Writes result[count][32] to the rows of the output that they are of; `gate` belongs to part 0 then.
  void store(const Call& call, const Place& place, const float* result, const float* gate, std::int64_t first_row,
             std::int64_t count) const {
    const Part& part = parts_[place.part];
    const std::int64_t columns = attributes_.columns[place.part];
    const std::int64_t column = place.panel * kPanelColumns;
    PanelOutput output;
    output.kind = io_;
    output.columns = std::min(kPanelColumns, columns - column);
    output.scale = part.weights->panel(place.panel).column_scale;
    output.bias = part.panel_bias(place.panel);
    if (gate != nullptr) {
      output.gate_scale = parts_[0].weights->panel(place.panel).column_scale;
      output.gate_bias = parts_[0].panel_bias(place.panel);
    }
    output.stride = columns;
    std::byte* const to = call.outputs[gate != nullptr ? 0 : place.part];
    // Neighbours in A are stored in one go.
    for (std::int64_t row = 0, next = 0; row < count; row = next) {
      const std::int64_t first = call.chosen[static_cast<std::size_t>(first_row + row)];
      while (next < count && call.chosen[static_cast<std::size_t>(first_row + next)] == first + next - row) ++next;
      output.data = to + static_cast<std::size_t>(first * columns + column) * element_bytes();
      if (gate != nullptr) output.gate = gate + row * kPanelColumns;
      kernels_.store(result + row * kPanelColumns, next - row, output);
    }
  }

  Attributes attributes_;
  ElementKind io_;
  const MatMulKernels& kernels_;
  std::shared_ptr<MatMulWorkPool> pool_;  ///< shared by all kernels of the definitions
  bool has_tiles_ = !attributes_.exact && kernels_.multiply_bf16 != nullptr && allows_prompt_bf16();
  std::vector<Part> parts_;
  std::int64_t panels_ = 0;  ///< of all parts; with swiglu of one
  std::size_t bytes_ = 0;
  int max_threads_ = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
};

std::vector<ort::OpPort> input_ports(DType io) {
  constexpr bool kOptional = true;
  std::vector<ort::OpPort> ports = {{io}};
  for (std::size_t p = 0; p < kMaxParts; ++p) {
    ports.push_back({DType::kUInt8, p > 0});
    ports.push_back({io, p > 0});
    ports.push_back({DType::kUInt8, kOptional});
    ports.push_back({io, kOptional});
  }
  ports.push_back({DType::kInt32, kOptional});
  return ports;
}

}  // namespace

std::vector<ort::OpDefinition> matmul_nbits_definitions() {
  struct Element {
    DType dtype;
    ElementKind kind;
  };
  constexpr Element kIo[] = {{DType::kFloat32, ElementKind::kFloat32}, {DType::kFloat16, ElementKind::kFloat16}};
  const auto pool = std::make_shared<MatMulWorkPool>();
  std::vector<ort::OpDefinition> definitions;
  for (const Element& io : kIo) {
    definitions.push_back({.name = "MatMulNBits",
                           .inputs = input_ports(io.dtype),
                           .outputs = {{io.dtype}, {io.dtype, true}, {io.dtype, true}},
                           .create = [kind = io.kind, pool](const ort::KernelInfo& info) {
                             return std::make_unique<MatMulNBits>(info, kind, pool);
                           }});
  }
  return definitions;
}

}  // namespace genai::kernels
