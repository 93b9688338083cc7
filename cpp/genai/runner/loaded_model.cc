#include "genai/runner/loaded_model.h"

#include "genai/base/cpu.h"
#include "genai/base/error.h"
#include "genai/kernels/custom_ops.h"
#include "genai/runner/contiguous_runner.h"
#include "genai/runner/paged_inputs.h"
#include "genai/runner/session_options.h"
#include "genai/runner/step_inputs.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <utility>

namespace genai::runner {
namespace {

ort::Session load_session(const ort::Library& library, const ModelSpec& spec, ort::SessionOptions options) {
  options.domains.push_back(&kernels::custom_op_domain(library));
  if (spec.model_bytes.empty()) return ort::Session(library, spec.model_path, options);
  return ort::Session(library, {spec.model_bytes, spec.external_folder, spec.model_path}, options);
}

/// The bytes are needed for loading only.
ModelSpec without_bytes(ModelSpec spec) {
  spec.model_bytes = std::string();
  return spec;
}

std::string joined(const std::vector<ort::Port>& ports) {
  std::string names;
  for (const ort::Port& port : ports) names += (names.empty() ? "" : ", ") + port.name;
  return names;
}

}  // namespace

LoadedModel::LoadedModel(const ModelSpec& spec, const RunnerOptions& options)
    : spec_(without_bytes(spec)),
      intra_op_threads_(options.intra_op_threads > 0 ? options.intra_op_threads : usable_physical_cores()),
      ort_library_(ort::Library::load(options.ort_library)),
      bytes_before_load_(session_bytes()),
      session_(load_session(ort_library_, spec, session_options(options, intra_op_threads_))),
      run_options_(ort_library_),
      tracer_(options.tracer ? options.tracer : std::make_shared<Tracer>()),
      op_profiler_(*tracer_, run_options_) {
  check_ports();
  for (const KvPair& pair : spec_.kv) layouts_.emplace_back(pair, spec_.model_path);

  for (const ProviderOption& provider : options.providers) {
    info_.execution_provider += (info_.execution_provider.empty() ? "" : ",") + provider.name;
  }
  if (options.providers.empty()) info_.execution_provider = "cpu";
  info_.vocab_size = spec_.vocab_size;
  info_.context_limit = spec_.context_limit;
  info_.intra_op_threads = intra_op_threads_;
  info_.loaded_bytes = std::max<std::int64_t>(0, session_bytes() - bytes_before_load_);
  for (const KvLayout& layout : layouts_) {
    info_.kv_bytes_per_token += static_cast<std::int64_t>(layout.bytes_per_position());
  }

  info_.num_hot_blocks = blocks_within(options.kv.hot_bytes, info_.block_size * info_.kv_bytes_per_token);

  const ort::Port& logits = *session_.find_output(spec_.logits);
  takes_batches_ =
      logits.dims.size() == 3 && logits.dims[0] < 0 &&
      std::all_of(layouts_.begin(), layouts_.end(), [](const KvLayout& layout) { return layout.fixed_batch() == 0; });
  // These inputs hold one number for all rows.
  const bool one_length =
      spec_.past_sequence_length || spec_.cache_position || (spec_.seqlens_k && spec_.seqlens_k->rank == 0);
  takes_ragged_batches_ = takes_batches_ && !one_length;
}

void LoadedModel::refuse(const std::string& why) const {
  throw Error(ErrorCode::kBadPackage, spec_.model_path + ": " + why);
}

void LoadedModel::check_input(const std::string& name, DType dtype) const {
  const ort::Port* const port = session_.find_input(name);
  if (port == nullptr) refuse("the graph has no input \"" + name + "\"; it has: " + joined(session_.inputs()) + ".");
  if (port->dtype != dtype) {
    refuse("input \"" + name + "\" is " + std::string(port->dtype ? genai::name(*port->dtype) : "of another type") +
           "; expected " + std::string(genai::name(dtype)) + ".");
  }
}

/// dims: -1 where any size, or a symbolic one, is right.
void LoadedModel::check_cache(const std::string& name, DType dtype, const Dims& dims) const {
  check_input(name, dtype);
  const std::vector<std::int64_t>& found = session_.find_input(name)->dims;
  bool same = found.size() == dims.rank() && found[0] < 0;
  for (std::size_t axis = 1; same && axis < found.size(); ++axis) {
    same = found[axis] < 0 || found[axis] == dims[axis];
  }
  if (same) return;
  refuse("input \"" + name + "\" has dims " + Dims(std::span<const std::int64_t>(found)).text() + "; expected " +
         dims.text() + ".");
}

void LoadedModel::check_paged() const {
  const std::initializer_list<std::pair<const char*, const std::optional<InputPort>&>> ports = {
      {"cumulative_sequence_length", spec_.cumulative_sequence_length},
      {"past_seqlens", spec_.past_seqlens},
      {"block_table", spec_.block_table}};
  for (const auto& [role, port] : ports) {
    if (!port || port->dtype != DType::kInt32) {
      refuse("the paged graph has no int32 input for " + std::string(role) + ".");
    }
  }
  if (spec_.block_size < 1 || spec_.paged_layers.empty()) {
    refuse("the paged graph has " + std::to_string(spec_.paged_layers.size()) + " layers and blocks of " +
           std::to_string(spec_.block_size) + " positions; expected at least 1 of each.");
  }
  if (!spec_.logits_indices && spec_.last_logits_only) {
    refuse("the paged graph returns logits of the last token alone and has no input for logits_indices.");
  }
  const std::int64_t block_size = spec_.block_size;
  for (const PagedLayer& layer : spec_.paged_layers) {
    const bool is_int8 = layer.dtype == DType::kInt8;
    if (layer.key_scale.empty() == is_int8 || layer.value_scale.empty() == is_int8) {
      refuse("the caches of \"" + layer.key_cache + "\" are " + std::string(genai::name(layer.dtype)) +
             "; int8 caches need scales, others have none.");
    }
    check_cache(layer.key_cache, layer.dtype, {-1, layer.kv_heads, layer.head_dim, block_size});
    check_cache(layer.value_cache, layer.dtype, {-1, layer.kv_heads, block_size, layer.value_dim});
    for (const std::string& scale : {layer.key_scale, layer.value_scale}) {
      if (is_int8) check_cache(scale, DType::kFloat32, {-1, layer.kv_heads, block_size});
    }
  }
}

/// All inputs that the spec knows.
std::vector<std::string> LoadedModel::input_names() const {
  std::vector<std::string> names;
  const bool is_paged = spec_.cache == CacheStyle::kPaged;
  for (const InputPort& port : is_paged ? PagedInputs::ports(spec_) : StepInputs::ports(spec_)) {
    names.push_back(port.name);
  }
  for (const KvPair& pair : spec_.kv) names.push_back(pair.past);
  for (const PagedLayer& layer : spec_.paged_layers) {
    for (const std::string& name : {layer.key_cache, layer.value_cache, layer.key_scale, layer.value_scale}) {
      if (!name.empty()) names.push_back(name);
    }
  }
  return names;
}

void LoadedModel::check_ports() const {
  if (spec_.vocab_size <= 0) refuse("the vocabulary size is " + std::to_string(spec_.vocab_size) + "; expected > 0.");
  const bool is_paged = spec_.cache == CacheStyle::kPaged;
  for (const InputPort& port : is_paged ? PagedInputs::ports(spec_) : StepInputs::ports(spec_)) {
    check_input(port.name, port.dtype);
  }
  for (const KvPair& pair : spec_.kv) {
    check_input(pair.past, pair.dtype);
    if (session_.find_output(pair.present) == nullptr) {
      refuse("the graph has no output \"" + pair.present + "\"; it has: " + joined(session_.outputs()) + ".");
    }
  }
  if (is_paged) check_paged();
  const std::vector<std::string> known = input_names();
  for (const ort::Port& port : session_.inputs()) {
    if (std::find(known.begin(), known.end(), port.name) != known.end()) continue;
    refuse("the graph has an input \"" + port.name + "\" whose meaning is not known.");
  }
  check_logits();
}

void LoadedModel::check_logits() const {
  const ort::Port* const logits = session_.find_output(spec_.logits);
  if (logits == nullptr) {
    refuse("the graph has no output \"" + spec_.logits + "\"; it has: " + joined(session_.outputs()) + ".");
  }
  if (logits->dtype != spec_.logits_dtype) {
    refuse("output \"" + spec_.logits + "\" is not " + std::string(genai::name(spec_.logits_dtype)) + ".");
  }
  const std::vector<std::int64_t>& dims = logits->dims;
  if (dims.empty() || dims.size() > 3 || (dims.back() > 0 && dims.back() != spec_.vocab_size)) {
    refuse("output \"" + spec_.logits + "\" has dims " + Dims(std::span<const std::int64_t>(dims)).text() +
           "; expected [batch, sequence, " + std::to_string(spec_.vocab_size) + "].");
  }
}

std::vector<std::string> LoadedModel::past_names() const {
  std::vector<std::string> names;
  for (const KvPair& pair : spec_.kv) names.push_back(pair.past);
  return names;
}

std::vector<std::string> LoadedModel::output_names() const {
  std::vector<std::string> names = {spec_.logits};
  for (const KvPair& pair : spec_.kv) names.push_back(pair.present);
  return names;
}

void LoadedModel::run(ort::RunFrame& frame, const RunSize& size) {
  const std::int64_t number = op_profiler_.begin(size);
  const TraceSpan span(trace(), TraceName::kRun, size.num_tokens, number + 1);
  const auto start = std::chrono::steady_clock::now();
  const auto count = [&] {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    run_seconds_ += seconds;
    ++num_runs_;
    op_profiler_.end(size, seconds);
  };
  try {
    frame.run(run_options_);
  } catch (...) {
    count();
    throw;
  }
  count();
}

void check_plan(const StepPlan& plan, const ModelSpec& spec) {
  std::vector<SequenceId> ids;
  ids.reserve(plan.sequences.size());
  for (const ScheduledSequence& sequence : plan.sequences) ids.push_back(sequence.id);
  std::sort(ids.begin(), ids.end());
  check(std::adjacent_find(ids.begin(), ids.end()) == ids.end(), "a step plan has a sequence twice");
  for (const ScheduledSequence& sequence : plan.sequences) {
    const std::int64_t end = sequence.num_computed_tokens + sequence.num_scheduled_tokens;
    check(sequence.num_computed_tokens >= 0 && sequence.num_scheduled_tokens >= 1 &&
              end <= static_cast<std::int64_t>(sequence.tokens.size()),
          "a step plan schedules tokens that do not exist");
    for (std::int64_t t = sequence.num_computed_tokens; t < end; ++t) {
      const TokenId token = sequence.tokens[static_cast<std::size_t>(t)];
      if (token >= 0 && token < spec.vocab_size) continue;
      throw Error(ErrorCode::kInvalidArgument, "token id " + std::to_string(token) + " at position " +
                                                   std::to_string(t) + "; allowed: 0.." +
                                                   std::to_string(spec.vocab_size - 1) + " (the model's vocabulary)");
    }
  }
}

}  // namespace genai::runner
