#include "genai/engine/engine.h"

#include "data.h"
#include "hooks.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace genai::bindings {
namespace {

/// Frees the engine without the GIL: its thread may be waiting for it to call a hook.
struct EngineDeleter {
  void operator()(engine::Engine* engine) const {
    const py::gil_scoped_release no_gil;
    delete engine;
  }
};

using EngineHolder = std::shared_ptr<engine::Engine>;  // shared with waiting threads

std::vector<TokenId> token_ids(const py::array_t<std::int64_t>& ids) {
  if (ids.ndim() != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "prompt ids have " + std::to_string(ids.ndim()) + " dimensions; allowed: 1");
  }
  std::vector<TokenId> tokens;
  tokens.reserve(static_cast<std::size_t>(ids.size()));
  for (py::ssize_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = ids.at(i);
    if (id < 0 || id > INT32_MAX) {
      throw Error(ErrorCode::kInvalidArgument,
                  "prompt token " + std::to_string(i) + " has id " + std::to_string(id) + ", which is out of range");
    }
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

EngineHolder open_engine(const ModelSpec& spec, const runner::RunnerOptions& runner_options,
                         const engine::EngineOptions& options, const std::shared_ptr<TokenTable>& tokens) {
  const py::gil_scoped_release no_gil;
  return {engine::Engine::open(spec, runner_options, options, tokens).release(), EngineDeleter{}};
}

RequestId submit(engine::Engine& engine, const py::array_t<std::int64_t>& prompt, const SamplingParams& params,
                 const std::vector<py::object>& processors, const py::object& sampler) {
  Request request;
  request.prompt = token_ids(prompt);
  request.params = params;
  for (const py::object& processor : processors) request.logits_hooks.push_back(logits_hook(processor));
  if (!sampler.is_none()) request.sampler_hook = sampler_hook(sampler);
  const py::gil_scoped_release no_gil;
  return engine.submit(std::move(request));
}

py::dict metrics_dict(const engine::Metrics& m) {
  using namespace py::literals;
  return py::dict("num_requests"_a = m.num_requests, "num_finished_requests"_a = m.num_finished_requests,
                  "num_failed_requests"_a = m.num_failed_requests, "num_aborted_requests"_a = m.num_aborted_requests,
                  "num_steps"_a = m.num_steps, "num_prompt_tokens"_a = m.num_prompt_tokens,
                  "num_generated_tokens"_a = m.num_generated_tokens, "step_seconds"_a = m.step_seconds,
                  "run_seconds"_a = m.run_seconds, "sample_seconds"_a = m.sample_seconds,
                  "num_running"_a = m.num_running, "num_waiting"_a = m.num_waiting, "kv_bytes"_a = m.kv_bytes,
                  "kv_reserved_tokens"_a = m.kv_reserved_tokens, "kv_capacity_tokens"_a = m.kv_capacity_tokens);
}

void bind_options(py::module_& module) {
  py::class_<runner::RunnerOptions>(module, "RunnerOptions")
      .def(
          py::init(
              [](std::string ort_library, int intra_op_threads, bool spinning,
                 const std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>>& providers,
                 std::vector<std::pair<std::string, std::string>> session_config) {
                runner::RunnerOptions options;
                options.ort_library = std::move(ort_library);
                options.intra_op_threads = intra_op_threads;
                options.spinning = spinning;
                for (const auto& [name, values] : providers) options.providers.push_back({name, values});
                options.session_config = std::move(session_config);
                return options;
              }),
          py::kw_only(), py::arg("ort_library"), py::arg("intra_op_threads"), py::arg("spinning"), py::arg("providers"),
          py::arg("session_config"));
  py::class_<engine::EngineOptions>(module, "EngineOptions")
      .def(py::init<>())
      .def_property(
          "max_num_seqs", [](const engine::EngineOptions& o) { return o.scheduler.max_num_seqs; },
          [](engine::EngineOptions& o, int value) { o.scheduler.max_num_seqs = value; })
      .def_property(
          "max_num_batched_tokens", [](const engine::EngineOptions& o) { return o.scheduler.max_num_batched_tokens; },
          [](engine::EngineOptions& o, std::int64_t value) { o.scheduler.max_num_batched_tokens = value; })
      .def_property(
          "max_prefill_tokens_while_decoding",
          [](const engine::EngineOptions& o) { return o.scheduler.max_prefill_tokens_while_decoding; },
          [](engine::EngineOptions& o, std::int64_t value) { o.scheduler.max_prefill_tokens_while_decoding = value; })
      .def_readwrite("max_queue", &engine::EngineOptions::max_queue)
      .def_readwrite("kv_budget_bytes", &engine::EngineOptions::kv_budget_bytes)
      .def_readwrite("kv_budget_source", &engine::EngineOptions::kv_budget_source)
      .def_readwrite("context_limit", &engine::EngineOptions::context_limit)
      .def_readwrite("context_source", &engine::EngineOptions::context_source)
      .def_readwrite("eos_ids", &engine::EngineOptions::eos_ids);
}

}  // namespace

void bind_engine(py::module_& module) {
  bind_options(module);
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<engine::Engine, EngineHolder>(module, "Engine")
      .def(py::init(&open_engine), py::arg("spec"), py::arg("runner_options"), py::arg("engine_options"),
           py::arg("tokens"))
      .def(
          "submit",
          [](engine::Engine& self, const py::array_t<std::int64_t>& prompt, const SamplingParams& params,
             const std::vector<py::object>& processors,
             const py::object& sampler) { return submit(self, prompt, params, processors, sampler).value; },
          py::arg("prompt"), py::arg("params"), py::arg("logits_processors"), py::arg("sampler"))
      .def(
          "wait",
          [](engine::Engine& self, std::uint64_t id, int timeout_ms, bool until_end) {
            return self.wait(RequestId{id}, std::chrono::milliseconds(timeout_ms),
                             until_end ? engine::WaitFor::kEnd : engine::WaitFor::kPiece);
          },
          py::arg("request_id"), py::arg("timeout_ms"), py::arg("until_end"), no_gil)
      .def(
          "abort", [](engine::Engine& self, std::uint64_t id) { self.abort(RequestId{id}); }, py::arg("request_id"),
          no_gil)
      .def(
          "drop", [](engine::Engine& self, std::uint64_t id) { self.drop(RequestId{id}); }, py::arg("request_id"),
          no_gil)
      .def("close", &engine::Engine::close, no_gil)
      .def_property_readonly("closed", &engine::Engine::closed)
      .def("metrics",
           [](const engine::Engine& self) {
             engine::Metrics metrics;
             {
               const py::gil_scoped_release release;
               metrics = self.metrics();
             }
             return metrics_dict(metrics);
           })
      .def("info",
           [](const engine::Engine& self) {
             using namespace py::literals;
             const runner::RunnerInfo& info = self.runner_info();
             return py::dict("decoder"_a = info.decoder, "execution_provider"_a = info.execution_provider,
                             "vocab_size"_a = info.vocab_size, "intra_op_threads"_a = info.intra_op_threads,
                             "kv_bytes_per_token"_a = info.kv_bytes_per_token,
                             "can_chunk_prefill"_a = info.can_chunk_prefill);
           })
      .def_property_readonly("context_limit", &engine::Engine::context_limit)
      .def_property_readonly("context_source", &engine::Engine::context_source);
}

}  // namespace genai::bindings
