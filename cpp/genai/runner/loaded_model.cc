#include "genai/runner/loaded_model.h"

#include "genai/base/checksum.h"
#include "genai/base/cpu.h"
#include "genai/base/error.h"
#include "genai/kernels/custom_ops.h"
#include "genai/runner/contiguous_runner.h"
#include "genai/runner/paged_inputs.h"
#include "genai/runner/session_options.h"
#include "genai/runner/step_inputs.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <span>
#include <utility>

namespace genai::runner {
namespace {

kernels::PackedStore::Options packed_options(const ModelSpec& spec, const PackedFiles& files) {
  const std::string& graph = spec.model_bytes.empty() ? spec.model_path : spec.model_bytes;
  return {.folder = files.folder, .max_bytes = files.max_bytes, .graph = checksum(std::as_bytes(std::span(graph)))};
}

ort::Session load_session(const ort::Library& library, const ModelSpec& spec, ort::SessionOptions options,
                          const ort::OpDomain& domain) {
  options.domains.push_back(&domain);
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
      packed_store_(std::make_shared<kernels::PackedStore>(packed_options(spec, options.packed))),
      domain_(kernels::make_op_domain(ort_library_, packed_store_)),
      session_(load_session(ort_library_, spec, session_options(options, intra_op_threads_), *domain_)),
      run_options_(ort_library_),
      tracer_(options.tracer ? options.tracer : std::make_shared<Tracer>()),
      op_profiler_(*tracer_, run_options_.can_profile()) {
  packed_store_->finish();
  check_ports();
  for (const KvPair& pair : spec_.kv) layouts_.emplace_back(pair, spec_.model_path);

  for (const ProviderOption& provider : options.providers) {
    info_.execution_provider += (info_.execution_provider.empty() ? "" : ",") + provider.name;
  }
  if (options.providers.empty()) info_.execution_provider = "cpu";
  info_.vocab_size = spec_.vocab_size;
  const auto needed = std::ranges::find(spec_.adapter_inputs, false, &AdapterInput::has_default);
  if (needed != spec_.adapter_inputs.end()) info_.needed_adapter_input = needed->name;
  info_.context_limit = spec_.context_limit;
  info_.intra_op_threads = intra_op_threads_;
  info_.packed_weights = packed_store_->summary();
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

void LoadedModel::check_output(const std::string& name) const {
  if (session_.find_output(name) != nullptr) return;
  refuse("the graph has no output \"" + name + "\"; it has: " + joined(session_.outputs()) + ".");
}

/// dims: -1 where a symbolic one is right; the first too must be symbolic then. Others may be symbolic in the graph.
void LoadedModel::check_cache(const std::string& name, DType dtype, const Dims& dims) const {
  check_input(name, dtype);
  const std::vector<std::int64_t>& found = session_.find_input(name)->dims;
  bool same = found.size() == dims.rank();
  for (std::size_t axis = 0; same && axis < found.size(); ++axis) {
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
    if (layer.order == BlockOrder::kPositionsFirst) {
      const std::int64_t blocks = spec_.num_blocks > 0 ? spec_.num_blocks : -1;
      check_cache(layer.key_cache, layer.dtype, {blocks, block_size, layer.kv_heads, layer.head_dim});
      check_cache(layer.value_cache, layer.dtype, {blocks, block_size, layer.kv_heads, layer.value_dim});
      check_output(layer.key_present);
      check_output(layer.value_present);
      continue;
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
  for (const KvPair& pair : spec_.states) names.push_back(pair.past);
  for (const CrossInput& cross : spec_.cross) names.push_back(cross.input);
  for (const AdapterInput& input : spec_.adapter_inputs) names.push_back(input.name);
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
  for (const std::vector<KvPair>& pairs : {std::cref(spec_.kv), std::cref(spec_.states)}) {
    for (const KvPair& pair : pairs) {
      check_input(pair.past, pair.dtype);
      check_output(pair.present);
    }
  }
  for (const CrossInput& cross : spec_.cross) {
    check_input(cross.input, cross.dtype);
    if (cross.source == CrossInput::Source::kDecoder) check_output(cross.name);
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
  ort::RunOptions& options = adapter_ == nullptr ? run_options_ : adapter_->run_options();
  const std::int64_t number = op_profiler_.begin(size, options);
  const TraceSpan span(trace(), TraceName::kRun, size.num_tokens, number + 1);
  const auto start = std::chrono::steady_clock::now();
  const auto count = [&] {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    run_seconds_ += seconds;
    ++num_runs_;
    op_profiler_.end(size, seconds);
  };
  try {
    if (adapter_ == nullptr) {
      frame.run(run_options_);
    } else {
      run_with(options, frame);
    }
  } catch (...) {
    count();
    throw;
  }
  count();
}

/// Runs with options of an adapter, which an interrupt must reach as well.
void LoadedModel::run_with(ort::RunOptions& options, ort::RunFrame& frame) {
  const auto set_running = [&](ort::RunOptions* running) {
    const std::lock_guard lock(interrupt_mutex_);
    running_ = running;
    if (running == nullptr) return;
    running->clear_terminate();
    if (is_interrupted_) running->terminate();
  };
  set_running(&options);
  try {
    frame.run(options);
  } catch (const Error& error) {
    set_running(nullptr);
    if (error.code() != ErrorCode::kBackend) throw;
    throw Error(ErrorCode::kBackend, std::string(error.what()) + " (with the adapter " + adapter_->path() + ")");
  } catch (...) {
    set_running(nullptr);
    throw;
  }
  set_running(nullptr);
}

void LoadedModel::begin(const StepPlan& plan) {
  check_plan(plan, spec_);
  const auto adapter_of = [](const ScheduledSequence& sequence) {
    return adapter_at(sequence.adapters, sequence.num_computed_tokens + sequence.num_scheduled_tokens - 1);
  };
  const Adapter* const adapter = plan.sequences.empty() ? nullptr : adapter_of(plan.sequences.front());
  for (const ScheduledSequence& sequence : plan.sequences) {
    check(adapter_of(sequence) == adapter, "a step plan mixes adapters");
  }
  adapter_ = dynamic_cast<const LoadedAdapter*>(adapter);
  check(adapter_ == adapter, "a request has an adapter of something else");
  const std::lock_guard lock(interrupt_mutex_);
  is_interrupted_ = false;
  run_options_.clear_terminate();
}

std::shared_ptr<const Adapter> LoadedModel::load_adapter(const AdapterFile& file) const {
  return std::make_shared<const LoadedAdapter>(session_, spec_, file, ++num_adapters_);
}

void LoadedModel::interrupt() {
  const std::lock_guard lock(interrupt_mutex_);
  is_interrupted_ = true;
  run_options_.terminate();
  if (running_ != nullptr) running_->terminate();
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
