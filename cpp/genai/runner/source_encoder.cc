#include "genai/runner/source_encoder.h"

#include "genai/base/error.h"
#include "genai/runner/session_options.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

namespace genai::runner {
namespace {

/// Outputs of the encoder that the decoder reads, each once, in order of spec.cross.
std::vector<std::string> output_names(const std::vector<CrossInput>& cross) {
  std::vector<std::string> names;
  for (const CrossInput& input : cross) {
    const bool known = std::ranges::find(names, input.name) != names.end();
    if (input.source == CrossInput::Source::kEncoder && !known) names.push_back(input.name);
  }
  return names;
}

std::size_t num_bytes(const Dims& dims, DType dtype) {
  return static_cast<std::size_t>(dims.num_elements()) * size_bytes(dtype);
}

/// Dims that differ where both are fixed; the batch is no difference.
bool fits(std::span<const std::int64_t> dims, const std::vector<std::int64_t>& wanted) {
  if (dims.size() != wanted.size()) return false;
  for (std::size_t axis = 1; axis < dims.size(); ++axis) {
    if (wanted[axis] >= 0 && dims[axis] >= 0 && dims[axis] != wanted[axis]) return false;
  }
  return true;
}

std::string text_of(const std::vector<std::int64_t>& dims) {
  return Dims(std::span<const std::int64_t>(dims)).text();
}

}  // namespace

SourceEncoder::SourceEncoder(const ModelSpec& spec, const RunnerOptions& options, int intra_op_threads)
    : path_(spec.encoder.model_path),
      inputs_(spec.encoder.inputs),
      cross_(spec.cross),
      ort_library_(ort::Library::load(options.ort_library)),
      loaded_bytes_(static_cast<std::int64_t>(ort_library_.host_allocator_used_bytes())),
      session_(ort_library_, path_, session_options(options, intra_op_threads)),
      run_options_(ort_library_),
      frame_(session_, inputs_, output_names(cross_)),
      repeated_(inputs_.size()) {
  const auto used_bytes = static_cast<std::int64_t>(ort_library_.host_allocator_used_bytes());
  loaded_bytes_ = std::max<std::int64_t>(0, used_bytes - loaded_bytes_);
  for (const std::string& name : inputs_) {
    const ort::Port& port = *session_.find_input(name);
    if (!port.dtype || port.dims.empty()) {
      throw Error(ErrorCode::kUnsupported, path_ + ": input \"" + name + "\" is no tensor with a batch dimension");
    }
    batch_ = std::max(batch_, port.dims[0]);
  }
  for (const ort::Port& port : session_.inputs()) {
    if (std::ranges::find(inputs_, port.name) != inputs_.end()) continue;
    throw Error(ErrorCode::kBadPackage,
                path_ + ": the encoder has an input \"" + port.name + "\" whose meaning is not known.");
  }
  for (const CrossInput& cross : cross_) {
    if (cross.source != CrossInput::Source::kEncoder) continue;
    const ort::Port& port = *session_.find_output(cross.name);
    if (port.dtype == cross.dtype && (port.dims.empty() || fits(port.dims, cross.dims))) continue;
    throw Error(ErrorCode::kBadPackage, path_ + ": output \"" + cross.name + "\" " + text_of(port.dims) +
                                            " does not fit the decoder's input \"" + cross.input + "\" " +
                                            text_of(cross.dims) + " of " + std::string(genai::name(cross.dtype)));
  }
}

/// Lends the frame a tensor of the request, in as many rows as the graph wants.
void SourceEncoder::bind(std::size_t index, const EncoderInputs& inputs) {
  const std::string& name = inputs_[index];
  const ort::Port& port = *session_.find_input(name);
  const NamedTensor* const tensor = inputs.find(name);
  if (tensor == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "the request has no tensor \"" + name + "\", which the encoder reads");
  }
  if (tensor->dtype != port.dtype || !fits(tensor->dims, port.dims) || tensor->dims[0] != 1) {
    throw Error(ErrorCode::kInvalidArgument, "the encoder input \"" + name + "\" is " +
                                                 std::string(genai::name(tensor->dtype)) + " " + text_of(tensor->dims) +
                                                 "; expected " + std::string(genai::name(*port.dtype)) + " " +
                                                 text_of(port.dims) + " with a batch of 1");
  }
  Dims dims{std::span<const std::int64_t>(tensor->dims)};
  check(tensor->bytes.size() == num_bytes(dims, tensor->dtype), "a tensor of a request has not the bytes of its dims");
  std::vector<std::byte>& rows = repeated_[index];
  rows.clear();
  for (std::int64_t row = 0; row < batch_; ++row) rows.insert(rows.end(), tensor->bytes.begin(), tensor->bytes.end());
  dims[0] = batch_;
  frame_.set_input(index, ort::Value::view(ort_library_, tensor->dtype, dims, rows.data()));
}

/// A tensor of the first row alone. Throws kBackend when its dims are not what the decoder takes.
ort::Value SourceEncoder::first_row(ort::Value output, const CrossInput& cross) const {
  Dims dims = output.dims();
  if (dims.rank() == 0 || dims[0] != batch_ || !fits(dims.span(), cross.dims)) {
    throw Error(ErrorCode::kBackend, path_ + ": output \"" + cross.name + "\" has dims " + dims.text() +
                                         "; the decoder's input \"" + cross.input + "\" takes " + text_of(cross.dims));
  }
  if (dims[0] == 1) return output;
  dims[0] = 1;
  ort::Value row = ort::Value::allocate(ort_library_, cross.dtype, dims);
  std::memcpy(row.data(), output.data(), num_bytes(dims, cross.dtype));
  return row;
}

std::vector<SharedValue> SourceEncoder::run(const EncoderInputs& inputs) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) bind(i, inputs);
  for (std::size_t i = 0; i < frame_.num_outputs(); ++i) frame_.set_output(i, ort::Value());
  const auto start = std::chrono::steady_clock::now();
  frame_.run(run_options_);
  run_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++num_runs_;

  const std::vector<std::string> names = output_names(cross_);
  std::vector<SharedValue> made(names.size());
  std::vector<SharedValue> values(cross_.size());
  for (std::size_t i = 0; i < cross_.size(); ++i) {
    const CrossInput& cross = cross_[i];
    switch (cross.source) {
      case CrossInput::Source::kEncoder: {
        const auto index = static_cast<std::size_t>(std::ranges::find(names, cross.name) - names.begin());
        if (!made[index]) made[index] = std::make_shared<ort::Value>(first_row(frame_.take_output(index), cross));
        values[i] = made[index];
        break;
      }
      case CrossInput::Source::kRequest: {
        const NamedTensor* const tensor = inputs.find(cross.input);
        if (tensor == nullptr || tensor->dtype != cross.dtype || !fits(tensor->dims, cross.dims)) {
          throw Error(ErrorCode::kInvalidArgument, "the request has no tensor \"" + cross.input + "\" of " +
                                                       std::string(genai::name(cross.dtype)) + " " +
                                                       text_of(cross.dims) + ", which the decoder reads");
        }
        ort::Value copy =
            ort::Value::allocate(ort_library_, cross.dtype, Dims(std::span<const std::int64_t>(tensor->dims)));
        check(tensor->bytes.size() == num_bytes(copy.dims(), cross.dtype), "a tensor has not the bytes of its dims");
        std::memcpy(copy.data(), tensor->bytes.data(), tensor->bytes.size());
        values[i] = std::make_shared<ort::Value>(std::move(copy));
        break;
      }
      case CrossInput::Source::kDecoder:
        break;
    }
  }
  return values;
}

}  // namespace genai::runner
