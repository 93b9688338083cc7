#include "genai/base/error.h"
#include "genai/base/trace.h"
#include "genai/engine/engine.h"

#include "data.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace genai::bindings {
namespace {

void start_trace(engine::Engine& engine, int level, std::size_t max_events, std::string ops_folder) {
  if (level < 1 || level > static_cast<int>(TraceLevel::kFull)) {
    throw Error(ErrorCode::kInvalidArgument, "trace level " + std::to_string(level) + "; allowed: 1..3");
  }
  const py::gil_scoped_release no_gil;
  engine.start_trace(static_cast<TraceLevel>(level), max_events, std::move(ops_folder));
}

/// The events as bytes, which the array owns, and how many were lost since the start.
py::tuple take_trace(engine::Engine& engine) {
  auto taken = std::make_unique<Tracer::Taken>();
  {
    const py::gil_scoped_release no_gil;
    *taken = engine.take_trace();
  }
  const std::int64_t num_lost = taken->num_lost;
  const auto size = static_cast<py::ssize_t>(taken->events.size() * sizeof(TraceEvent));
  const auto* data = reinterpret_cast<const std::uint8_t*>(taken->events.data());
  const py::capsule owner(taken.release(), [](void* events) { delete static_cast<Tracer::Taken*>(events); });
  return py::make_tuple(py::array_t<std::uint8_t>(size, data, owner), num_lost);
}

std::vector<std::string> trace_names() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kNumTraceNames; ++i) names.emplace_back(name(static_cast<TraceName>(i)));
  return names;
}

}  // namespace

void bind_profile(py::module_& module) {
  module.def("start_trace", &start_trace, py::arg("engine"), py::kw_only(), py::arg("level"), py::arg("max_events"),
             py::arg("ops_folder"));
  module.def("stop_trace", &engine::Engine::stop_trace, py::arg("engine"), py::call_guard<py::gil_scoped_release>());
  module.def("drop_trace", &engine::Engine::drop_trace, py::arg("engine"));
  module.def("take_trace", &take_trace, py::arg("engine"));
  module.def("trace_names", &trace_names);
}

}  // namespace genai::bindings
