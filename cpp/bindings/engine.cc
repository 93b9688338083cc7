#include "genai/engine/engine.h"

#include "genai/base/memory.h"
#include "genai/engine/kv_salt.h"

#include "data.h"
#include "hooks.h"

#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

/// A loaded adapter as Python holds it.
struct AdapterHandle {
  std::shared_ptr<const Adapter> adapter;  ///< shared with the requests that run with it
};

/// From which position on a request runs with what.
using AdapterHandles = std::vector<std::pair<std::int64_t, AdapterHandle>>;

std::vector<AdapterSpan> adapter_spans(const AdapterHandles& handles) {
  std::vector<AdapterSpan> spans;
  spans.reserve(handles.size());
  for (const auto& [first, handle] : handles) spans.push_back({.first = first, .adapter = handle.adapter});
  return spans;
}

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

NamedTensor named_tensor(const std::string& name, const py::array& array) {
  const std::pair<const char*, DType> types[] = {
      {"float32", DType::kFloat32}, {"float16", DType::kFloat16}, {"int64", DType::kInt64}, {"int32", DType::kInt32},
      {"int8", DType::kInt8},       {"uint8", DType::kUInt8},     {"bool", DType::kBool}};
  const std::string type = py::str(array.dtype());
  for (const auto& [known, dtype] : types) {
    if (type != known) continue;
    const py::array whole = py::array::ensure(array, py::array::c_style);
    const auto* const data = static_cast<const std::byte*>(whole.data());
    return {.name = name,
            .dtype = dtype,
            .dims = {whole.shape(), whole.shape() + whole.ndim()},
            .bytes = {data, data + whole.nbytes()}};
  }
  throw Error(ErrorCode::kInvalidArgument, "the tensor \"" + name + "\" is " + type +
                                               "; allowed: float32, float16, int64, int32, int8, uint8, bool");
}

EngineHolder open_engine(const ModelSpec& spec, const runner::RunnerOptions& runner_options,
                         const engine::EngineOptions& options, const std::shared_ptr<TokenTable>& tokens) {
  const py::gil_scoped_release no_gil;
  trim_heap();  // of what reading the package took, before the weights come on top
  return {engine::Engine::open(spec, runner_options, options, tokens).release(), EngineDeleter{}};
}

void bind_request(py::module_& module) {
  py::class_<EncoderInputs, std::shared_ptr<EncoderInputs>>(module, "EncoderInputs")  // shared with requests
      .def(py::init([](const std::vector<std::pair<std::string, py::array>>& tensors, std::int64_t num_tokens) {
             auto inputs = std::make_shared<EncoderInputs>();
             inputs->num_tokens = num_tokens;
             for (const auto& [name, array] : tensors) inputs->tensors.push_back(named_tensor(name, array));
             return inputs;
           }),
           py::kw_only(), py::arg("tensors"), py::arg("num_tokens"));
  py::class_<AdapterHandle>(module, "Adapter");
  py::class_<Request>(module, "Request")
      .def(py::init([](const py::array_t<std::int64_t>& prompt, const SamplingParams& params,
                       const std::vector<py::object>& processors, const py::object& sampler, int priority,
                       std::optional<double> timeout, std::string cache_salt, const py::object& grammar,
                       std::shared_ptr<EncoderInputs> encoder_inputs, const AdapterHandles& adapters) {
             Request request;
             request.prompt = token_ids(prompt);
             request.params = params;
             request.priority = priority;
             request.timeout_seconds = timeout;
             request.cache_salt = std::move(cache_salt);
             request.grammar = token_grammar(grammar);
             request.encoder_inputs = std::move(encoder_inputs);
             request.adapters = adapter_spans(adapters);
             for (const py::object& processor : processors) request.logits_hooks.push_back(logits_hook(processor));
             if (!sampler.is_none()) request.sampler_hook = sampler_hook(sampler);
             return request;
           }),
           py::kw_only(), py::arg("prompt"), py::arg("params"), py::arg("logits_processors"), py::arg("sampler"),
           py::arg("priority") = 0, py::arg("timeout") = py::none(), py::arg("cache_salt") = "",
           py::arg("grammar") = py::none(), py::arg("encoder_inputs") = py::none(),
           py::arg("adapters") = AdapterHandles{});
}

std::vector<std::pair<std::uint64_t, std::vector<Event>>> wait_any(engine::Engine& engine, int timeout_ms) {
  std::vector<std::pair<std::uint64_t, std::vector<Event>>> events;
  for (auto& ready : engine.wait_any(std::chrono::milliseconds(timeout_ms))) {
    events.emplace_back(ready.id.value, std::move(ready.events));
  }
  return events;
}

/// The tokens that the KV covers and the bytes, which the array owns.
py::tuple export_kv(engine::Engine& engine, const py::array_t<std::int64_t>& tokens, const std::string& salt,
                    const AdapterHandles& adapters) {
  auto kv = std::make_unique<engine::KvBytes>();
  {
    std::vector<TokenId> ids = token_ids(tokens);
    const py::gil_scoped_release no_gil;
    *kv = engine.export_kv(std::move(ids), engine::kv_salt(salt, adapter_spans(adapters)));
  }
  const std::int64_t num_tokens = kv->num_tokens;
  const auto size = static_cast<py::ssize_t>(kv->bytes.size());
  const auto* data = reinterpret_cast<const std::uint8_t*>(kv->bytes.data());
  const py::capsule owner(kv.release(), [](void* bytes) { delete static_cast<engine::KvBytes*>(bytes); });
  return py::make_tuple(num_tokens, py::array_t<std::uint8_t>(size, data, owner));
}

std::int64_t import_kv(engine::Engine& engine, const py::array_t<std::int64_t>& tokens, const std::string& salt,
                       const py::array_t<std::uint8_t, py::array::c_style>& data, const AdapterHandles& adapters) {
  if (data.ndim() != 1) {
    throw Error(ErrorCode::kInvalidArgument, "KV data has " + std::to_string(data.ndim()) + " dimensions; allowed: 1");
  }
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data.data()),
                                         static_cast<std::size_t>(data.size()));
  std::vector<TokenId> ids = token_ids(tokens);
  const py::gil_scoped_release no_gil;
  return engine.import_kv(std::move(ids), engine::kv_salt(salt, adapter_spans(adapters)), bytes);
}

py::dict metrics_dict(const engine::Metrics& m) {
  py::dict dict;
  dict["num_requests"] = m.num_requests;
  dict["num_finished_requests"] = m.num_finished_requests;
  dict["num_failed_requests"] = m.num_failed_requests;
  dict["num_aborted_requests"] = m.num_aborted_requests;
  dict["num_expired_requests"] = m.num_expired_requests;
  dict["num_steps"] = m.num_steps;
  dict["num_step_tokens"] = m.num_step_tokens;
  std::int64_t steps = 0;
  for (std::size_t i = 0; i < engine::kStepTokenBounds.size(); ++i) {
    steps += m.steps_by_tokens[i];
    dict[py::str("num_steps_up_to_" + std::to_string(engine::kStepTokenBounds[i]) + "_tokens")] = steps;
  }
  dict["num_prompt_tokens"] = m.num_prompt_tokens;
  dict["num_recomputed_tokens"] = m.num_recomputed_tokens;
  dict["num_generated_tokens"] = m.num_generated_tokens;
  dict["num_preemptions"] = m.num_preemptions;
  dict["step_seconds"] = m.step_seconds;
  dict["schedule_seconds"] = m.schedule_seconds;
  dict["apply_seconds"] = m.apply_seconds;
  dict["move_seconds"] = m.move_seconds;
  dict["execute_seconds"] = m.execute_seconds;
  dict["run_seconds"] = m.run_seconds;
  dict["sample_seconds"] = m.sample_seconds;
  dict["publish_seconds"] = m.publish_seconds;
  dict["num_running"] = m.num_running;
  dict["num_waiting"] = m.num_waiting;
  dict["prefix_queried_tokens"] = m.prefix_queried_tokens;
  dict["prefix_hit_tokens"] = m.prefix_hit_tokens;
  dict["kv_bytes"] = m.kv_bytes;
  dict["kv_capacity_tokens"] = m.kv_capacity_tokens;
  dict["kv_hot_blocks"] = m.kv_hot_blocks;
  dict["kv_warm_blocks"] = m.kv_warm_blocks;
  dict["kv_cold_blocks"] = m.kv_cold_blocks;
  dict["kv_hot_used_blocks"] = m.kv_hot_used_blocks;
  dict["kv_hot_cached_blocks"] = m.kv_hot_cached_blocks;
  dict["kv_warm_used_blocks"] = m.kv_warm_used_blocks;
  dict["kv_cold_used_blocks"] = m.kv_cold_used_blocks;
  dict["kv_evicted_blocks"] = m.kv_evicted_blocks;
  dict["kv_swapped_out_blocks"] = m.kv_swapped_out_blocks;
  dict["kv_swapped_in_blocks"] = m.kv_swapped_in_blocks;
  dict["kv_copied_blocks"] = m.kv_copied_blocks;
  dict["kv_failed_moves"] = m.kv_failed_moves;
  dict["kv_failed_copies"] = m.kv_failed_copies;
  dict["kv_allocated_blocks"] = m.kv_allocated_blocks;
  dict["kv_freed_blocks"] = m.kv_freed_blocks;
  dict["kv_failed_reserves"] = m.kv_failed_reserves;
  dict["kv_cold_writes"] = m.kv_cold_writes;
  dict["kv_cold_reads"] = m.kv_cold_reads;
  dict["session_bytes"] = m.session_bytes;
  return dict;
}

py::dict info_dict(const engine::Engine& engine) {
  using namespace py::literals;
  const runner::RunnerInfo& info = engine.runner_info();
  return py::dict("decoder"_a = info.decoder, "execution_provider"_a = info.execution_provider,
                  "vocab_size"_a = info.vocab_size, "intra_op_threads"_a = info.intra_op_threads,
                  "kv_bytes_per_token"_a = info.kv_bytes_per_token, "loaded_bytes"_a = info.loaded_bytes,
                  "packed_weights"_a = info.packed_weights, "can_chunk_prefill"_a = info.can_chunk_prefill,
                  "has_encoder"_a = info.has_encoder, "shares_blocks"_a = info.shares_blocks,
                  "block_size"_a = info.block_size, "block_bytes"_a = engine.block_bytes(),
                  "hot_blocks"_a = info.num_hot_blocks, "warm_blocks"_a = info.num_warm_blocks,
                  "cold_blocks"_a = info.num_cold_blocks, "last_kv_failure"_a = engine.last_kv_failure());
}

void bind_options(py::module_& module) {
  py::native_enum<engine::Delivery>(module, "Delivery", "enum.Enum")
      .value("own", engine::Delivery::kOwn)
      .value("shared", engine::Delivery::kShared)
      .value("shared_at_end", engine::Delivery::kSharedAtEnd)
      .finalize();
  py::class_<runner::KvMemory>(module, "KvMemory")
      .def(py::init(
               [](std::int64_t hot_bytes, std::int64_t warm_bytes, std::int64_t cold_bytes, std::string cold_folder) {
                 return runner::KvMemory{.hot_bytes = hot_bytes,
                                         .warm_bytes = warm_bytes,
                                         .cold_bytes = cold_bytes,
                                         .cold_folder = std::move(cold_folder)};
               }),
           py::kw_only(), py::arg("hot_bytes") = 0, py::arg("warm_bytes") = 0, py::arg("cold_bytes") = 0,
           py::arg("cold_folder") = "")
      .def_readwrite("hot_bytes", &runner::KvMemory::hot_bytes)
      .def_readwrite("warm_bytes", &runner::KvMemory::warm_bytes)
      .def_readwrite("cold_bytes", &runner::KvMemory::cold_bytes)
      .def_readwrite("cold_folder", &runner::KvMemory::cold_folder);
  py::class_<runner::ProviderOption>(module, "ProviderOption")
      .def(py::init([](std::string name, std::string plugin_path, std::string device,
                       std::vector<std::pair<std::string, std::string>> options) {
             return runner::ProviderOption{.name = std::move(name),
                                           .plugin_path = std::move(plugin_path),
                                           .device = std::move(device),
                                           .options = std::move(options)};
           }),
           py::kw_only(), py::arg("name"), py::arg("plugin_path"), py::arg("device"), py::arg("options"));
  py::class_<runner::RunnerOptions>(module, "RunnerOptions")
      .def(py::init([](std::string ort_library, int intra_op_threads, bool spinning,
                       std::vector<runner::ProviderOption> providers,
                       std::vector<std::pair<std::string, std::string>> session_config, runner::KvMemory kv,
                       std::string packed_folder, std::int64_t packed_bytes) {
             runner::RunnerOptions options;
             options.ort_library = std::move(ort_library);
             options.intra_op_threads = intra_op_threads;
             options.spinning = spinning;
             options.providers = std::move(providers);
             options.session_config = std::move(session_config);
             options.kv = std::move(kv);
             options.packed = {.folder = std::move(packed_folder), .max_bytes = packed_bytes};
             return options;
           }),
           py::kw_only(), py::arg("ort_library"), py::arg("intra_op_threads"), py::arg("spinning"),
           py::arg("providers"), py::arg("session_config"), py::arg("kv") = runner::KvMemory{},
           py::arg("packed_folder") = "", py::arg("packed_bytes") = 0);
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
      .def_property(
          "priority_ageing_seconds", [](const engine::EngineOptions& o) { return o.scheduler.priority_ageing_seconds; },
          [](engine::EngineOptions& o, double value) { o.scheduler.priority_ageing_seconds = value; })
      .def_readwrite("max_queue", &engine::EngineOptions::max_queue)
      .def_readwrite("prefix_cache", &engine::EngineOptions::prefix_cache)
      .def_readwrite("kv_budget_source", &engine::EngineOptions::kv_budget_source)
      .def_readwrite("context_limit", &engine::EngineOptions::context_limit)
      .def_readwrite("context_source", &engine::EngineOptions::context_source)
      .def_readwrite("eos_ids", &engine::EngineOptions::eos_ids);
}

}  // namespace

void bind_engine(py::module_& module) {
  bind_options(module);
  bind_request(module);
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<engine::Engine, EngineHolder>(module, "Engine")
      .def(py::init(&open_engine), py::arg("spec"), py::arg("runner_options"), py::arg("engine_options"),
           py::arg("tokens"))
      .def(
          "submit",
          [](engine::Engine& self, const Request& request, engine::Delivery delivery) {
            return self.submit(request, delivery).value;
          },
          py::arg("request"), py::arg("delivery") = engine::Delivery::kOwn, no_gil)
      .def(
          "submit_all",
          [](engine::Engine& self, std::vector<Request> requests, engine::Delivery delivery) {
            std::vector<std::uint64_t> ids;
            for (const RequestId id : self.submit_all(std::move(requests), delivery)) ids.push_back(id.value);
            return ids;
          },
          py::arg("requests"), py::arg("delivery") = engine::Delivery::kOwn, no_gil)
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
      .def("wait_any", &wait_any, py::arg("timeout_ms"), no_gil)
      .def(
          "preempt", [](engine::Engine& self, std::uint64_t id) { return self.preempt(RequestId{id}); },
          py::arg("request_id"), no_gil)
      .def("export_kv", &export_kv, py::arg("tokens"), py::arg("salt") = "", py::arg("adapters") = AdapterHandles{})
      .def("import_kv", &import_kv, py::arg("tokens"), py::arg("salt"), py::arg("data"),
           py::arg("adapters") = AdapterHandles{})
      .def(
          "load_adapter",
          [](const engine::Engine& self, const py::bytes& data, const std::string& path) {
            const std::string_view bytes = data;
            const py::gil_scoped_release release;
            return AdapterHandle{self.load_adapter({.bytes = bytes, .path = path})};
          },
          py::arg("data"), py::arg("path"))
      .def("clear_prefix_cache", &engine::Engine::clear_prefix_cache, no_gil)
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
      .def("info", &info_dict)
      .def_property_readonly("context_limit", &engine::Engine::context_limit)
      .def_property_readonly("context_source", &engine::Engine::context_source);
}

}  // namespace genai::bindings
