#include "data.h"

#include "genai/core/model_spec.h"
#include "genai/core/request.h"
#include "genai/core/sampling_params.h"
#include "genai/core/token_table.h"

#include "errors.h"

#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace py = pybind11;

namespace genai::bindings {
namespace {

void bind_model_spec(py::module_& module) {
  py::native_enum<DType>(module, "DType", "enum.Enum")
      .value("float32", DType::kFloat32)
      .value("float16", DType::kFloat16)
      .value("bfloat16", DType::kBFloat16)
      .value("int64", DType::kInt64)
      .value("int32", DType::kInt32)
      .value("int8", DType::kInt8)
      .value("uint8", DType::kUInt8)
      .value("bool", DType::kBool)
      .finalize();
  py::native_enum<CacheStyle>(module, "CacheStyle", "enum.Enum")
      .value("slot_gqa", CacheStyle::kSlotGqa)
      .value("slot_static", CacheStyle::kSlotStatic)
      .value("copy", CacheStyle::kCopy)
      .value("none", CacheStyle::kNone)
      .value("cross", CacheStyle::kCross)
      .value("paged", CacheStyle::kPaged)
      .finalize();
  py::class_<InputPort>(module, "InputPort")
      .def(py::init([](std::string name, DType dtype, int rank) { return InputPort{std::move(name), dtype, rank}; }),
           py::arg("name"), py::arg("dtype"), py::arg("rank"));
  py::class_<KvPair>(module, "KvPair")
      .def(py::init([](std::string past, std::string present, DType dtype, std::vector<std::int64_t> dims,
                       int batch_axis, int sequence_axis) {
             return KvPair{std::move(past), std::move(present), dtype, std::move(dims), batch_axis, sequence_axis};
           }),
           py::kw_only(), py::arg("past"), py::arg("present"), py::arg("dtype"), py::arg("dims"), py::arg("batch_axis"),
           py::arg("sequence_axis"));
  py::class_<PagedLayer>(module, "PagedLayer")
      .def(py::init([](std::string key_cache, std::string value_cache, std::string key_scale, std::string value_scale,
                       DType dtype, int kv_heads, int head_dim, int value_dim, std::string key_present,
                       std::string value_present) {
             const bool in_place = key_present.empty();
             return PagedLayer{.key_cache = std::move(key_cache),
                               .value_cache = std::move(value_cache),
                               .key_scale = std::move(key_scale),
                               .value_scale = std::move(value_scale),
                               .order = in_place ? BlockOrder::kHeadsFirst : BlockOrder::kPositionsFirst,
                               .key_present = std::move(key_present),
                               .value_present = std::move(value_present),
                               .dtype = dtype,
                               .kv_heads = kv_heads,
                               .head_dim = head_dim,
                               .value_dim = value_dim};
           }),
           py::kw_only(), py::arg("key_cache"), py::arg("value_cache"), py::arg("key_scale"), py::arg("value_scale"),
           py::arg("dtype"), py::arg("kv_heads"), py::arg("head_dim"), py::arg("value_dim"),
           py::arg("key_present") = "", py::arg("value_present") = "");
  py::class_<ConstantInput>(module, "ConstantInput")
      .def(py::init([](InputPort port, bool like_ids, std::vector<std::int64_t> dims, std::int64_t value) {
             return ConstantInput{std::move(port),
                                  like_ids ? ConstantInput::Shape::kLikeIds : ConstantInput::Shape::kFixed,
                                  std::move(dims), value};
           }),
           py::kw_only(), py::arg("port"), py::arg("like_ids"), py::arg("dims"), py::arg("value"));
  py::class_<AdapterInput>(module, "AdapterInput")
      .def(py::init([](std::string name, bool has_default) { return AdapterInput{std::move(name), has_default}; }),
           py::kw_only(), py::arg("name"), py::arg("has_default"));
  py::native_enum<CrossInput::Source>(module, "CrossSource", "enum.Enum")
      .value("encoder", CrossInput::Source::kEncoder)
      .value("request", CrossInput::Source::kRequest)
      .value("decoder", CrossInput::Source::kDecoder)
      .finalize();
  py::class_<CrossInput>(module, "CrossInput")
      .def(py::init([](std::string input, CrossInput::Source source, std::string name, DType dtype,
                       std::vector<std::int64_t> dims) {
             return CrossInput{std::move(input), source, std::move(name), dtype, std::move(dims)};
           }),
           py::kw_only(), py::arg("input"), py::arg("source"), py::arg("name"), py::arg("dtype"), py::arg("dims"));
  py::class_<EncoderGraph>(module, "EncoderGraph")
      .def(py::init([](std::string model_path, std::vector<std::string> inputs) {
             return EncoderGraph{std::move(model_path), std::move(inputs)};
           }),
           py::kw_only(), py::arg("model_path"), py::arg("inputs"));
  py::class_<ModelSpec>(module, "ModelSpec")
      .def(py::init<>())
      .def_readwrite("model_path", &ModelSpec::model_path)
      .def_property(
          "model_bytes", [](const ModelSpec& spec) { return py::bytes(spec.model_bytes); },
          [](ModelSpec& spec, const py::bytes& bytes) { spec.model_bytes = std::string(bytes); })
      .def_readwrite("external_folder", &ModelSpec::external_folder)
      .def_readwrite("cache", &ModelSpec::cache)
      .def_readwrite("input_ids", &ModelSpec::input_ids)
      .def_readwrite("attention_mask", &ModelSpec::attention_mask)
      .def_readwrite("position_ids", &ModelSpec::position_ids)
      .def_readwrite("seqlens_k", &ModelSpec::seqlens_k)
      .def_readwrite("total_sequence_length", &ModelSpec::total_sequence_length)
      .def_readwrite("past_sequence_length", &ModelSpec::past_sequence_length)
      .def_readwrite("cache_position", &ModelSpec::cache_position)
      .def_readwrite("use_cache_branch", &ModelSpec::use_cache_branch)
      .def_readwrite("write_indices", &ModelSpec::write_indices)
      .def_readwrite("nonpad_kv_seqlen", &ModelSpec::nonpad_kv_seqlen)
      .def_readwrite("constants", &ModelSpec::constants)
      .def_readwrite("adapter_inputs", &ModelSpec::adapter_inputs)
      .def_readwrite("kv", &ModelSpec::kv)
      .def_readwrite("encoder", &ModelSpec::encoder)
      .def_readwrite("cross", &ModelSpec::cross)
      .def_readwrite("states", &ModelSpec::states)
      .def_readwrite("cumulative_sequence_length", &ModelSpec::cumulative_sequence_length)
      .def_readwrite("past_seqlens", &ModelSpec::past_seqlens)
      .def_readwrite("block_table", &ModelSpec::block_table)
      .def_readwrite("logits_indices", &ModelSpec::logits_indices)
      .def_readwrite("prompt_rows", &ModelSpec::prompt_rows)
      .def_readwrite("attention_metadata", &ModelSpec::attention_metadata)
      .def_readwrite("paged_layers", &ModelSpec::paged_layers)
      .def_readwrite("block_size", &ModelSpec::block_size)
      .def_readwrite("num_blocks", &ModelSpec::num_blocks)
      .def_readwrite("logits_of_rows", &ModelSpec::logits_of_rows)
      .def_readwrite("logits", &ModelSpec::logits)
      .def_readwrite("logits_dtype", &ModelSpec::logits_dtype)
      .def_readwrite("last_logits_only", &ModelSpec::last_logits_only)
      .def_readwrite("vocab_size", &ModelSpec::vocab_size)
      .def_readwrite("context_limit", &ModelSpec::context_limit)
      .def_readwrite("context_source", &ModelSpec::context_source)
      .def_readwrite("max_batch", &ModelSpec::max_batch);
}

void bind_sampling_params(py::module_& module) {
  py::native_enum<EarlyStopping>(module, "EarlyStopping", "enum.Enum")
      .value("heuristic", EarlyStopping::kHeuristic)
      .value("first", EarlyStopping::kFirst)
      .value("never", EarlyStopping::kNever)
      .finalize();
  using P = SamplingParams;
  py::class_<P>(module, "SamplingParams")
      .def(py::init<>())
      .def_readwrite("max_new_tokens", &P::max_new_tokens)
      .def_readwrite("min_new_tokens", &P::min_new_tokens)
      .def_readwrite("temperature", &P::temperature)
      .def_readwrite("top_k", &P::top_k)
      .def_readwrite("top_p", &P::top_p)
      .def_readwrite("min_p", &P::min_p)
      .def_readwrite("typical_p", &P::typical_p)
      .def_readwrite("top_a", &P::top_a)
      .def_readwrite("mirostat", &P::mirostat)
      .def_readwrite("mirostat_tau", &P::mirostat_tau)
      .def_readwrite("mirostat_eta", &P::mirostat_eta)
      .def_readwrite("xtc_probability", &P::xtc_probability)
      .def_readwrite("xtc_threshold", &P::xtc_threshold)
      .def_readwrite("repetition_penalty", &P::repetition_penalty)
      .def_readwrite("frequency_penalty", &P::frequency_penalty)
      .def_readwrite("presence_penalty", &P::presence_penalty)
      .def_readwrite("dry_multiplier", &P::dry_multiplier)
      .def_readwrite("dry_base", &P::dry_base)
      .def_readwrite("dry_allowed_length", &P::dry_allowed_length)
      .def_readwrite("dry_sequence_breakers", &P::dry_sequence_breakers)
      .def_readwrite("no_repeat_ngram_size", &P::no_repeat_ngram_size)
      .def_readwrite("logit_bias", &P::logit_bias)
      .def_readwrite("bad_words", &P::bad_words)
      .def_readwrite("suppress_tokens", &P::suppress_tokens)
      .def_readwrite("begin_suppress_tokens", &P::begin_suppress_tokens)
      .def_readwrite("forced_tokens", &P::forced_tokens)
      .def_readwrite("stop", &P::stop)
      .def_readwrite("stop_token_ids", &P::stop_token_ids)
      .def_readwrite("include_stop", &P::include_stop)
      .def_readwrite("ignore_eos", &P::ignore_eos)
      .def_readwrite("skip_special_tokens", &P::skip_special_tokens)
      .def_readwrite("visible_special_tokens", &P::visible_special_tokens)
      .def_readwrite("seed", &P::seed)
      .def_readwrite("n", &P::n)
      .def_readwrite("num_beams", &P::num_beams)
      .def_readwrite("length_penalty", &P::length_penalty)
      .def_readwrite("early_stopping", &P::early_stopping)
      .def_readwrite("logprobs", &P::logprobs)
      .def_readwrite("top_logprobs", &P::top_logprobs)
      .def_readwrite("accept_equal_logits", &P::accept_equal_logits);
}

void bind_token_table(py::module_& module) {
  // shared with the engine's sequences
  py::class_<TokenTable, std::shared_ptr<TokenTable>>(module, "TokenTable")
      .def(py::init([](bool byte_fallback, bool strip_first_space, const std::vector<py::bytes>& bytes,
                       const std::vector<int>& kinds, const std::unordered_map<TokenId, py::bytes>& first) {
             if (bytes.size() != kinds.size()) {
               throw Error(ErrorCode::kInvalidArgument, "bytes and kinds differ in length");
             }
             auto table = std::make_shared<TokenTable>();
             table->decoding = byte_fallback ? TokenTable::Decoding::kByteFallback : TokenTable::Decoding::kByteLevel;
             table->strip_first_space = strip_first_space;
             table->bytes.assign(bytes.begin(), bytes.end());
             for (const int kind : kinds) {
               if (kind < 0 || kind > static_cast<int>(TokenTable::Kind::kSpecial)) {
                 throw Error(ErrorCode::kInvalidArgument,
                             "token kind is " + std::to_string(kind) + "; allowed: 0 text, 1 byte, 2 special");
               }
               table->kinds.push_back(static_cast<TokenTable::Kind>(kind));
             }
             for (const auto& [token, text] : first) table->first.emplace(token, std::string(text));
             return table;
           }),
           py::kw_only(), py::arg("byte_fallback"), py::arg("strip_first_space"), py::arg("bytes"), py::arg("kinds"),
           py::arg("first"))
      .def("__len__", &TokenTable::size);
}

const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

void bind_event(py::module_& module) {
  py::class_<Event>(module, "Event")
      .def_readonly("choice", &Event::choice)
      .def_property_readonly("tokens", [](const Event& event) { return py::tuple(py::cast(event.tokens)); })
      .def_readonly("text", &Event::text)
      .def_property_readonly("logprobs",
                             [](const Event& event) {
                               py::list rows;
                               for (const TokenLogprob& row : event.logprobs) {
                                 py::list top;
                                 for (const TopLogprob& each : row.top) {
                                   top.append(py::make_tuple(each.token, each.logprob));
                                 }
                                 rows.append(py::make_tuple(row.token, row.logprob, top));
                               }
                               return rows;
                             })
      .def_property_readonly("finish",
                             [](const Event& event) -> py::object {
                               return event.finish ? py::object(py::str(reason_name(*event.finish)))
                                                   : py::object(py::none());
                             })
      .def_readonly("stop_index", &Event::stop_index)
      .def_readonly("stop_token", &Event::stop_token)
      .def_property_readonly(
          "error",
          [](const Event& event) { return event.error ? make_exception(*event.error) : py::object(py::none()); })
      .def_readonly("last", &Event::last)
      .def_property_readonly("usage",
                             [](const Event& event) {
                               return py::make_tuple(event.usage.prompt_tokens, event.usage.completion_tokens,
                                                     event.usage.cached_tokens);
                             })
      .def_property_readonly("times",
                             [](const Event& event) -> py::object {
                               if (!event.times) return py::none();
                               return py::make_tuple(event.times->queued, event.times->prefill);
                             })
      .def_property_readonly("budget_cap",
                             [](const Event& event) -> py::object {
                               if (!event.budget_cap) return py::none();
                               return py::make_tuple(event.budget_cap->asked, event.budget_cap->granted);
                             })
      .def_readonly("score", &Event::score);
}

}  // namespace

void bind_data(py::module_& module) {
  bind_model_spec(module);
  bind_sampling_params(module);
  bind_token_table(module);
  bind_event(module);
}

}  // namespace genai::bindings
