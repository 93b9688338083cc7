#pragma once

// The paged test models (tests/models/paged.py) for tests of the paged decoder.

#include "genai/kernels/custom_ops.h"
#include "genai/runner/test_models.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace genai::runner {

inline const std::vector<std::string> kChecksumModels = {"paged_checksum",      "paged_checksum_fp16",
                                                         "paged_checksum_bf16", "paged_checksum_int8",
                                                         "paged_checksum_flat", "paged_checksum_all_logits"};

/// The spec of a model of tests/models/paged.py.
inline ModelSpec paged_spec(const std::string& model_path, const std::string& ort_library) {
  const ort::Library& library = ort::Library::load(ort_library);
  ort::SessionOptions options;
  options.domains.push_back(&kernels::custom_op_domain(library));
  const ort::Session session(library, model_path, options);
  const auto port = [&session](const std::string& name) -> std::optional<InputPort> {
    const ort::Port* const found = session.find_input(name);
    if (found == nullptr) return std::nullopt;
    return InputPort{name, *found->dtype, static_cast<int>(found->dims.size())};
  };
  ModelSpec spec;
  spec.model_path = model_path;
  spec.cache = CacheStyle::kPaged;
  spec.input_ids = *port("input_ids");
  spec.position_ids = port("position_ids");
  spec.cumulative_sequence_length = port("cumulative_sequence_length");
  spec.past_seqlens = port("past_seqlens");
  spec.block_table = port("block_table");
  spec.logits_indices = port("logits_indices");
  for (const std::string layer : {".0", ".1"}) {
    const ort::Port& key = *session.find_input("key_cache" + layer);
    const ort::Port& value = *session.find_input("value_cache" + layer);
    const bool is_int8 = *key.dtype == DType::kInt8;
    spec.block_size = static_cast<int>(key.dims[3]);
    spec.paged_layers.push_back({.key_cache = key.name,
                                 .value_cache = value.name,
                                 .key_scale = is_int8 ? "key_scale" + layer : "",
                                 .value_scale = is_int8 ? "value_scale" + layer : "",
                                 .dtype = *key.dtype,
                                 .kv_heads = static_cast<int>(key.dims[1]),
                                 .head_dim = static_cast<int>(key.dims[2]),
                                 .value_dim = static_cast<int>(value.dims[3])});
  }
  if (const std::optional<InputPort> types = port("token_type_ids")) {
    spec.constants.push_back({.port = *types, .shape = ConstantInput::Shape::kLikeIds, .dims = {}, .value = 0});
  }
  spec.logits = "logits";
  spec.logits_dtype = *session.find_output("logits")->dtype;
  spec.vocab_size = 97;
  return spec;
}

inline std::optional<ModelSpec> find_spec(const std::string& name) {
  const std::optional<std::string> library = test_ort_library();
  const std::optional<std::string> path = library ? test_model(name) : std::nullopt;
  if (!path) return std::nullopt;
  return paged_spec(*path, *library);
}

inline RunnerOptions options_with(const KvMemory& memory) {
  RunnerOptions options;
  options.ort_library = *test_ort_library();
  options.intra_op_threads = 1;
  options.kv = memory;
  return options;
}

/// Null when the environment does not give the model.
inline std::unique_ptr<ModelRunner> load(const std::string& name, const KvMemory& memory = {}) {
  const std::optional<ModelSpec> spec = find_spec(name);
  return spec ? make_runner(*spec, options_with(memory)) : nullptr;
}

/// `blocks` blocks of the model in each tier.
inline KvMemory memory_for(const std::string& name, std::int64_t blocks, const std::string& folder) {
  const std::unique_ptr<ModelRunner> runner = load(name);
  if (!runner) return {};
  const std::int64_t stride = (runner->block_bytes() + 4095) / 4096 * 4096;
  return {.hot_bytes = blocks * runner->block_bytes(),
          .warm_bytes = blocks * runner->block_bytes(),
          .cold_bytes = blocks * stride,
          .cold_folder = folder};
}

inline std::vector<BlockId> blocks_from(BlockId first, int count) {
  std::vector<BlockId> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(first + i);
  return blocks;
}

}  // namespace genai::runner
