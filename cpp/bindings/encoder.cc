#include "genai/embed/encoder.h"

#include "genai/base/error.h"

#include "data.h"

#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace genai::bindings {
namespace {

/// Ends a call of encode() from another thread. Thread-safe.
class StopFlag {
 public:
  void set() { is_set_.store(true, std::memory_order_relaxed); }
  bool is_set() const { return is_set_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> is_set_ = false;
};

/// Frees the model without the GIL: a run may have to end first.
struct EncoderDeleter {
  void operator()(embed::Encoder* encoder) const {
    const py::gil_scoped_release no_gil;
    delete encoder;
  }
};

using IntArray = py::array_t<std::int32_t, py::array::c_style>;
using LongArray = py::array_t<std::int64_t, py::array::c_style>;

template <typename T>
std::span<const T> view(const py::array_t<T, py::array::c_style>& array) {
  check(array.ndim() == 1, "an array of the encoder has more than one dimension");
  return {array.data(), static_cast<std::size_t>(array.size())};
}

/// The texts that lie one after another in `ids` (and in `types`, which may be empty); text i ends at ends[i].
std::vector<embed::Text> cut(std::span<const std::int32_t> ids, std::span<const std::int32_t> types,
                             std::span<const std::int64_t> ends, std::span<const std::int64_t> num_skipped) {
  check(types.empty() || types.size() == ids.size(), "token types are not one for each token");
  check(num_skipped.size() == ends.size(), "skipped tokens are not one number for each text");
  std::vector<embed::Text> texts;
  std::size_t start = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    check(ends[i] >= 0 && num_skipped[i] >= 0, "a text of the encoder has a negative size");
    const auto end = static_cast<std::size_t>(ends[i]);
    check(end >= start && end <= ids.size(), "the texts of the encoder do not lie one after another");
    embed::Text text{.ids = ids.subspan(start, end - start), .num_skipped = static_cast<std::size_t>(num_skipped[i])};
    if (!types.empty()) text.types = types.subspan(start, end - start);
    texts.push_back(text);
    start = end;
  }
  return texts;
}

py::array_t<float> encode(embed::Encoder& self, const IntArray& ids, const IntArray& types, const LongArray& ends,
                          const LongArray& num_skipped, const StopFlag& stop, bool check_signals) {
  const std::vector<embed::Text> texts = cut(view(ids), view(types), view(ends), view(num_skipped));
  const auto before_run = [&] {
    if (stop.is_set()) throw Error(ErrorCode::kAborted, "the texts are not wanted any more");
    if (!check_signals) return;
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  };
  auto vectors = std::make_unique<embed::Vectors>();
  {
    const py::gil_scoped_release no_gil;
    *vectors = self.encode(texts, before_run);
  }
  const auto rows = static_cast<py::ssize_t>(texts.size());
  const auto width = static_cast<py::ssize_t>(vectors->width);
  const float* const data = vectors->values.data();
  const py::capsule owner(vectors.release(), [](void* held) { delete static_cast<embed::Vectors*>(held); });
  return py::array_t<float>({rows, width}, data, owner);
}

py::dict metrics_dict(const embed::Encoder& self) {
  using namespace py::literals;
  const embed::EncoderMetrics metrics = self.metrics();
  return py::dict("num_texts"_a = metrics.num_texts, "num_tokens"_a = metrics.num_tokens,
                  "num_padding"_a = metrics.num_padding, "num_runs"_a = metrics.num_runs,
                  "run_seconds"_a = metrics.run_seconds);
}

void bind_spec(py::module_& module) {
  py::native_enum<embed::Pooling>(module, "Pooling", "enum.Enum")
      .value("mean", embed::Pooling::kMean)
      .value("cls", embed::Pooling::kCls)
      .value("max", embed::Pooling::kMax)
      .value("last", embed::Pooling::kLast)
      .value("weighted_mean", embed::Pooling::kWeightedMean)
      .value("mean_sqrt", embed::Pooling::kMeanSqrt)
      .finalize();
  py::class_<embed::EncoderSpec>(module, "EncoderSpec")
      .def(py::init<>())
      .def_readwrite("model_path", &embed::EncoderSpec::model_path)
      .def_readwrite("input_ids", &embed::EncoderSpec::input_ids)
      .def_readwrite("attention_mask", &embed::EncoderSpec::attention_mask)
      .def_readwrite("token_types", &embed::EncoderSpec::token_types)
      .def_readwrite("position_ids", &embed::EncoderSpec::position_ids)
      .def_readwrite("pasts", &embed::EncoderSpec::pasts)
      .def_readwrite("output", &embed::EncoderSpec::output)
      .def_readwrite("output_dtype", &embed::EncoderSpec::output_dtype)
      .def_readwrite("is_pooled", &embed::EncoderSpec::is_pooled)
      .def_readwrite("pooling", &embed::EncoderSpec::pooling)
      .def_readwrite("width", &embed::EncoderSpec::width)
      .def_readwrite("pad_id", &embed::EncoderSpec::pad_id)
      .def_readwrite("vocab_size", &embed::EncoderSpec::vocab_size)
      .def_readwrite("max_batch", &embed::EncoderSpec::max_batch);
}

}  // namespace

void bind_encoder(py::module_& module) {
  bind_spec(module);
  py::class_<StopFlag, std::shared_ptr<StopFlag>>(module, "StopFlag")
      .def(py::init<>())
      .def("set", &StopFlag::set)
      .def_property_readonly("is_set", &StopFlag::is_set);
  py::class_<embed::Encoder, std::unique_ptr<embed::Encoder, EncoderDeleter>>(module, "Encoder")
      .def(py::init(
               [](const embed::EncoderSpec& spec, const runner::RunnerOptions& options, std::int64_t max_batch_tokens) {
                 const py::gil_scoped_release no_gil;
                 return std::unique_ptr<embed::Encoder, EncoderDeleter>(
                     std::make_unique<embed::Encoder>(spec, options, max_batch_tokens).release());
               }),
           py::arg("spec"), py::arg("runner_options"), py::arg("max_batch_tokens"))
      .def("encode", &encode, py::kw_only(), py::arg("ids"), py::arg("types"), py::arg("ends"), py::arg("num_skipped"),
           py::arg("stop"), py::arg("check_signals"))
      .def("close", &embed::Encoder::close, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("closed", &embed::Encoder::closed)
      .def_property_readonly("width", &embed::Encoder::width)
      .def_property_readonly("intra_op_threads", &embed::Encoder::intra_op_threads)
      .def("metrics", &metrics_dict);
}

}  // namespace genai::bindings
