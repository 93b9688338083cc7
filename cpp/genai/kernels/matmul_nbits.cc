#include "genai/kernels/matmul_nbits.h"

#include "genai/base/error.h"
#include "genai/kernels/handed_rows.h"
#include "genai/kernels/matmul_node.h"
#include "genai/kernels/matmul_work.h"
#include "genai/kernels/packed_store.h"
#include "genai/kernels/parallel.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <thread>

namespace genai::kernels {
namespace {

/// Most of a panel's bytes that a thread takes in one go when there are few rows: long enough to stream.
constexpr std::size_t kPieceBytes = std::size_t{24} << 10;
/// Below this work, in bytes of weights times rows, more threads cost more than they bring.
constexpr double kSmallWork = 64 << 10;
/// Elements of activations from which on several threads prepare them.
constexpr std::int64_t kManyElements = 32 << 10;
/// What a thread fetches of its weights at most before it multiplies, and in one go.
constexpr std::size_t kFetchedBytes = std::size_t{64} << 10;
constexpr std::size_t kFetchedLines = 8;
/// Most rows that a thread prepares in one go: those of a tile.
constexpr std::int64_t kPreparedRows = 16;

class MatMulNBits final : public ort::OpKernel {
 public:
  MatMulNBits(const ort::KernelInfo& info, ElementKind io, std::shared_ptr<MatMulWorkPool> pool, PackedStore* store)
      : attributes_(MatMulAttributes::read(info)),
        io_(io),
        kernels_(matmul_kernels(chosen_isa())),
        pool_(std::move(pool)),
        norm_weight_(read_norm_weight(info, attributes_, io)),
        parts_(MatMulPart::read_all(info, attributes_, io, store)) {
    for (const MatMulPart& part : parts_) {
      panels_ += part.panels();
      bytes_ += part.weights->panel_bytes() * static_cast<std::size_t>(part.panels());
    }
    if (attributes_.swiglu) panels_ = parts_.front().panels();
    if (attributes_.handed_block > 0) {
      reader_ = PanelView::with_blocks(attributes_.columns[0], attributes_.handed_block);
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
    std::array<std::byte*, kMatMulParts> outputs{};
    for (std::size_t p = 0; p < (attributes_.swiglu ? 1 : parts_.size()); ++p) {
      Dims dims = a.dims;
      dims[rank - 1] = attributes_.columns[p];
      outputs[p] = context.output(p, dims).data;
    }
    const std::int32_t* const prompt_rows = has_tiles_ ? read_prompt_rows(context, rows) : nullptr;
    const std::int64_t in_tiles =
        prompt_rows == nullptr ? 0 : rows - std::count(prompt_rows, prompt_rows + rows, std::int32_t{0});
    const HandedRows given = give(context, in_tiles, rows - in_tiles);
    const HandedRows taken = take(context, in_tiles, rows - in_tiles);
    const Source source = read_source(context, a, rows);
    if (rows == 0) return;
    const MatMulWorkPool::Loan work = pool_->take();
    for (const bool bf16 : {false, true}) {
      const std::span<const std::int64_t> chosen = work->choose(prompt_rows, rows, bf16);
      if (!chosen.empty()) run(context, *work, source, outputs, given, taken, chosen, bf16);
    }
  }

 private:
  /// Where the rows come from.
  struct Source {
    const std::byte* rows;
    const std::byte* skip = nullptr;  ///< of row i is row i % skip_rows, or nullptr
    std::int64_t skip_rows = 0;
    std::byte* sum = nullptr;
  };

  /// What is computed in one way: some of the rows.
  struct Call {
    const ort::KernelContext& context;
    MatMulWork& work;
    const std::array<std::byte*, kMatMulParts>& outputs;
    std::span<const std::int64_t> chosen;  ///< their places in A, ascending
    std::int64_t rows;                     ///< how many
    int threads;
    bool bf16;
    QuantizedRows quantized;
    Bf16Rows tiles;
    const float* floats;
    HandedRows given;  ///< for the product behind this one
  };

  Source read_source(const ort::KernelContext& context, const ort::KernelTensor& a, std::int64_t rows) const {
    Source source{a.data};
    if (!attributes_.has_skip) return source;
    const ort::KernelTensor skip = context.input(kSkipPort);
    const std::size_t rank = skip.dims.rank();
    source.sum = context.output(kSumOutput, a.dims).data;
    if (rows == 0) return source;
    source.skip = skip.data;
    source.skip_rows = rank == 0 ? 0 : skip.dims.num_elements() / attributes_.depth;
    if (source.skip_rows == 0 || skip.dims[rank - 1] != attributes_.depth || rows % source.skip_rows != 0) {
      throw Error(ErrorCode::kInvalidArgument, "MatMulNBits: skip is " + skip.dims.text() +
                                                   "; it must have the rows of A, which is " + a.dims.text() +
                                                   ", or those that repeat in it");
    }
    return source;
  }

  /// What the product behind this one takes; empty where it takes the first output.
  HandedRows give(const ort::KernelContext& context, std::int64_t in_tiles, std::int64_t others) const {
    if (attributes_.handed_block == 0) return {};
    const std::int64_t bytes = HandedRows::bytes(in_tiles, others, reader_);
    const HandedRows given = HandedRows::at(context.output(kHandedOutput, Dims{bytes}).data, in_tiles, others, reader_);
    given.clear_padding(in_tiles, others, reader_);
    return given;
  }

  /// What the product before this one gave; empty if it gave nothing.
  HandedRows take(const ort::KernelContext& context, std::int64_t in_tiles, std::int64_t others) const {
    const ort::KernelTensor tensor = context.input(kHandedPort);
    if (!tensor.present()) return {};
    check(!attributes_.normalises, "rows that are normalised are not handed over");
    const PanelView shape = parts_.front().panel(0);
    const std::int64_t bytes = HandedRows::bytes(in_tiles, others, shape);
    if (tensor.dims.num_elements() != bytes) {
      throw Error(ErrorCode::kInvalidArgument, "MatMulNBits: the rows handed over must have " + std::to_string(bytes) +
                                                   " bytes; they are " + tensor.dims.text());
    }
    return HandedRows::at(tensor.data, in_tiles, others, shape);
  }

  /// One number for each row; nullptr if there is none, or not one for each (rows of something else than tokens).
  static const std::int32_t* read_prompt_rows(const ort::KernelContext& context, std::int64_t rows) {
    const ort::KernelTensor tensor = context.input(kPromptRowsPort);
    return tensor.present() && tensor.dims.num_elements() == rows ? tensor.as<const std::int32_t>() : nullptr;
  }

  void run(const ort::KernelContext& context, MatMulWork& work, const Source& source,
           const std::array<std::byte*, kMatMulParts>& outputs, const HandedRows& given, const HandedRows& taken,
           std::span<const std::int64_t> chosen, bool bf16) const {
    Call call{context,         work,        outputs, chosen, std::ssize(chosen), 1, bf16,
              taken.quantized, taken.tiles, nullptr, given};
    const double cost = static_cast<double>(bytes_) * static_cast<double>(call.rows + 7) / 8;
    call.threads = cost < kSmallWork ? 1 : max_threads_;
    const std::int64_t results = bf16 ? kTilePanels : attributes_.swiglu ? 2 : 1;
    work.reserve_threads(call.threads, parts_.front().panel(0).depth, results);
    const bool ready = bf16 ? taken.tiles.data != nullptr : taken.quantized.codes != nullptr;
    if (ready || bf16 || call.threads == 1 || has_many_elements(call)) {
      if (!ready) prepare(call, source);
      return bf16 ? multiply_in_tiles(call) : multiply(call, [](std::int64_t) { return true; });
    }
    // One thread prepares the few rows, and the others fetch meanwhile what they read first.
    Preparation preparation;
    multiply(call, [&](std::int64_t first_panel) {
      const Place place = attributes_.swiglu ? Place{0, first_panel} : locate(first_panel);
      const std::byte* const start = parts_[place.part].panel(place.panel).data;
      std::size_t fetched = 0;
      const auto fetch = [&] {
        if (fetched == kFetchedBytes) return std::this_thread::yield();
        for (std::size_t line = 0; line < kFetchedLines; ++line, fetched += 64) {
          __builtin_prefetch(start + fetched, 0, 2);
        }
      };
      return preparation.run([&] { prepare(call, source); }, fetch);
    });
  }

  std::size_t element_bytes() const { return io_ == ElementKind::kFloat16 ? 2 : 4; }

  /// A row of the call as float32, normalised if it is to be; zeros behind its end, up to `padded` elements.
  void load_row(const Call& call, const Source& source, std::int64_t row, std::int64_t padded, float* to) const {
    const auto bytes = attributes_.depth * static_cast<std::int64_t>(element_bytes());
    const std::int64_t place = call.chosen[static_cast<std::size_t>(row)];
    RowNorm norm;
    norm.kind = io_;
    norm.count = attributes_.depth;
    norm.source = source.rows + place * bytes;
    if (!attributes_.normalises) return kernels_.load_row(io_, norm.source, norm.count, padded, to);
    norm.epsilon = attributes_.norm_epsilon;
    norm.weight = norm_weight_.data();
    if (source.skip != nullptr) {
      norm.skip = source.skip + place % source.skip_rows * bytes;
      norm.sum = source.sum + place * bytes;
    }
    kernels_.normalise_row(norm, padded, to);
  }

  bool has_many_elements(const Call& call) const { return call.rows * parts_.front().panel(0).depth >= kManyElements; }

  /// Brings the activations into the form that the kernels read.
  void prepare(Call& call, const Source& source) const {
    const PanelView shape = parts_.front().panel(0);
    const bool ready = io_ == ElementKind::kFloat32 && attributes_.depth == shape.depth && !attributes_.normalises;
    float* floats = nullptr;
    if (attributes_.exact) {
      if (ready) {  // exact products never leave rows out
        call.floats = reinterpret_cast<const float*>(source.rows);
        return;
      }
      call.floats = floats = call.work.floats(call.rows, shape.depth);
    } else if (call.bf16) {
      call.tiles = call.work.bf16(call.rows, shape);
    } else {
      call.quantized = call.work.quantized(call.rows, shape);
    }
    const std::int64_t group = std::clamp<std::int64_t>(call.rows / (std::int64_t{4} * call.threads), 1, kPreparedRows);
    const std::int64_t groups = (call.rows + group - 1) / group;
    run_all(call.context, static_cast<std::size_t>(groups), has_many_elements(call) ? call.threads : 1,
            [&](std::size_t index, int thread) {
              const std::int64_t first = static_cast<std::int64_t>(index) * group;
              const std::int64_t end = std::min(call.rows, first + group);
              for (std::int64_t row = first; row < end; ++row) {
                const float* x = nullptr;
                if (ready) {
                  const std::int64_t place = call.chosen[static_cast<std::size_t>(row)];
                  x = reinterpret_cast<const float*>(source.rows) + place * shape.depth;
                } else {
                  float* const to = floats == nullptr ? call.work.thread(thread).row : floats + row * shape.depth;
                  load_row(call, source, row, shape.depth, to);
                  x = to;
                }
                if (call.bf16) {
                  kernels_.load_row_bf16(x, shape, row, call.tiles);
                } else if (floats == nullptr) {
                  kernels_.quantize_row(x, shape.steps(), shape.step_depth(), row, call.quantized);
                }
              }
            });
  }

  /// begin(panel): called by each thread with the first panel that it will multiply; false when it is to multiply none.
  template <typename Begin>
  void multiply(const Call& call, const Begin& begin) const {
    const std::int64_t blocks = (call.rows + kRowBlock - 1) / kRowBlock;
    const std::int64_t group = blocks > 1 ? 1 : panels_at_once(call);
    const std::int64_t groups = (panels_ + group - 1) / group;
    run_in_ranges(
        call.context, static_cast<std::size_t>(groups * blocks), call.threads,
        [&](std::size_t index) { return begin(static_cast<std::int64_t>(index) % groups * group); },
        [&](std::size_t index, int thread) {
          const std::int64_t first_row = static_cast<std::int64_t>(index) / groups * kRowBlock;
          const std::int64_t first = static_cast<std::int64_t>(index) % groups * group;
          const std::int64_t end = std::min(panels_, first + group);
          const std::int64_t count = std::min(kRowBlock, call.rows - first_row);
          const MatMulWork::Thread memory = call.work.thread(thread);
          for (std::int64_t panel = first; panel < end; ++panel) {
            multiply_panel(call, memory, panel, first_row, count);
          }
        });
  }

  /// How many of panels_ a thread takes in one go when there are few rows.
  std::int64_t panels_at_once(const Call& call) const {
    const std::size_t panel_bytes = parts_.front().weights->panel_bytes() * static_cast<std::size_t>(call.rows + 7) / 8;
    const auto most = static_cast<std::int64_t>(std::max<std::size_t>(1, kPieceBytes / panel_bytes));
    return std::clamp<std::int64_t>(panels_ / (std::int64_t{4} * call.threads), 1, most);
  }

  /// Columns for tiles are a panel each, or with swiglu half of two.
  void multiply_in_tiles(const Call& call) const {
    const std::int64_t columns = attributes_.swiglu ? 2 * panels_ : panels_;
    const std::span<const MatMulWork::Piece> pieces =
        call.work.cut(call.rows, columns, parts_.front().panel(0), call.threads);
    run_all(call.context, pieces.size(), call.threads,
            [&](std::size_t index, int thread) { multiply_tiles(call, call.work.thread(thread), pieces[index]); });
  }

  /// A panel of one of the parts.
  struct Place {
    std::size_t part;
    std::int64_t panel;
  };
  /// `panel` counts over the panels of all parts.
  Place locate(std::int64_t panel) const {
    std::size_t part = 0;
    for (; panel >= parts_[part].panels(); ++part) panel -= parts_[part].panels();
    return {part, panel};
  }

  void multiply_tiles(const Call& call, const MatMulWork::Thread& memory, const MatMulWork::Piece& piece) const {
    std::array<TileColumns, kTilePanels> columns;
    std::size_t num = 0;
    for (std::int64_t at = piece.first; at < piece.end; ++at) {
      TileColumns& some = columns[num];
      const Place place = attributes_.swiglu ? Place{1, at / 2} : locate(at);
      some.panel = parts_[place.part].panel(place.panel);
      some.output = output_of(call, place);
      if (attributes_.swiglu) {
        some.gate = parts_[0].panel(place.panel);
        some.half = static_cast<int>(at % 2);
        if (some.half == 1 && !take_second_half(some.output)) continue;
        some.output.columns = std::min<std::int64_t>(some.output.columns, kLanes);
        if (call.given.tiles.data != nullptr) call.given.put_into_tiles(at * kLanes, reader_, some.output);
      }
      ++num;
    }
    if (num == 0) return;
    const std::span<const std::int64_t> places =
        call.chosen.subspan(static_cast<std::size_t>(piece.first_row), static_cast<std::size_t>(piece.rows));
    kernels_.multiply_bf16({columns.data(), num}, call.tiles, piece.first_row, places, memory.results, memory.scratch);
  }

  /// Leaves the last 16 columns of a panel; false if it has none.
  bool take_second_half(PanelOutput& output) const {
    if (output.columns <= kLanes) return false;
    output.columns -= kLanes;
    for (const float** const values : {&output.scale, &output.bias, &output.gate_scale, &output.gate_bias}) {
      if (*values != nullptr) *values += kLanes;
    }
    output.data = static_cast<std::byte*>(output.data) + kLanes * element_bytes();
    return true;
  }

  void multiply_rows(const Call& call, const Place& place, std::int64_t first_row, std::int64_t count, float* out,
                     std::byte* scratch) const {
    const PanelView view = parts_[place.part].panel(place.panel);
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

  /// Where the columns of a panel go; `data` is of the first row. With swiglu the place is of part 1.
  PanelOutput output_of(const Call& call, const Place& place) const {
    const MatMulPart& part = parts_[place.part];
    const std::int64_t column = place.panel * kPanelColumns;
    PanelOutput output;
    output.kind = io_;
    output.stride = attributes_.columns[place.part];
    output.columns = std::min(kPanelColumns, output.stride - column);
    output.scale = part.panel(place.panel).column_scale;
    output.bias = part.panel_bias(place.panel);
    if (attributes_.swiglu) {
      output.gate_scale = parts_[0].panel(place.panel).column_scale;
      output.gate_bias = parts_[0].panel_bias(place.panel);
    }
    output.data =
        call.outputs[attributes_.swiglu ? 0 : place.part] + static_cast<std::size_t>(column) * element_bytes();
    return output;
  }

  /// Writes result[count][32] to the rows of the output that they are of; `gate` belongs to part 0 then.
  void store(const Call& call, const Place& place, const float* result, const float* gate, std::int64_t first_row,
             std::int64_t count) const {
    PanelOutput output = output_of(call, place);
    if (call.given.quantized.codes != nullptr) {
      output.gate = gate;
      call.given.put_quantized(first_row, place.panel * kPanelColumns, reader_, output);
      return kernels_.store(result, count, output);
    }
    auto* const to = static_cast<std::byte*>(output.data);
    // Neighbours in A are stored in one go.
    for (std::int64_t row = 0, next = 0; row < count; row = next) {
      const std::int64_t first = call.chosen[static_cast<std::size_t>(first_row + row)];
      while (next < count && call.chosen[static_cast<std::size_t>(first_row + next)] == first + next - row) ++next;
      output.data = to + static_cast<std::size_t>(first * output.stride) * element_bytes();
      if (gate != nullptr) output.gate = gate + row * kPanelColumns;
      kernels_.store(result + row * kPanelColumns, next - row, output);
    }
  }

  MatMulAttributes attributes_;
  ElementKind io_;
  const MatMulKernels& kernels_;
  std::shared_ptr<MatMulWorkPool> pool_;  ///< shared by all kernels of the definitions
  bool has_tiles_ = !attributes_.exact && kernels_.multiply_bf16 != nullptr && allows_prompt_bf16();
  std::vector<float> norm_weight_;
  std::vector<MatMulPart> parts_;
  PanelView reader_;         ///< shape of the product behind this one, if it takes rows as that gives them
  std::int64_t panels_ = 0;  ///< of all parts; with swiglu of one
  std::size_t bytes_ = 0;
  int max_threads_ = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
};

std::vector<ort::OpPort> input_ports(DType io) {
  constexpr bool kOptional = true;
  std::vector<ort::OpPort> ports = {{io}};
  for (std::size_t p = 0; p < kMatMulParts; ++p) {
    ports.push_back({DType::kUInt8, p > 0});
    ports.push_back({io, p > 0});
    ports.push_back({DType::kUInt8, kOptional});
    ports.push_back({io, kOptional});
  }
  ports.push_back({DType::kInt32, kOptional});
  ports.push_back({DType::kUInt8, kOptional});
  ports.push_back({io, kOptional});
  ports.push_back({io, kOptional});
  return ports;
}

std::vector<ort::OpPort> output_ports(DType io) {
  return {{io}, {io, true}, {io, true}, {DType::kUInt8, true}, {io, true}};
}

}  // namespace

std::vector<ort::OpDefinition> matmul_nbits_definitions(std::shared_ptr<PackedStore> store) {
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
                           .outputs = output_ports(io.dtype),
                           .create = [kind = io.kind, pool, store](const ort::KernelInfo& info) {
                             return std::make_unique<MatMulNBits>(info, kind, pool, store.get());
                           }});
  }
  return definitions;
}

}  // namespace genai::kernels
