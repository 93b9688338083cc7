#include "genai/runner/step_inputs.h"

#include "genai/base/error.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace genai::runner {

std::vector<std::pair<StepInputs::Role, InputPort>> StepInputs::roles(const ModelSpec& spec) {
  std::vector<std::pair<Role, InputPort>> roles = {{Role::kIds, spec.input_ids}};
  const auto add = [&roles](Role role, const std::optional<InputPort>& port) {
    if (port) roles.emplace_back(role, *port);
  };
  add(Role::kMask, spec.attention_mask);
  add(Role::kPositions, spec.position_ids);
  add(Role::kSeqlensK, spec.seqlens_k);
  add(Role::kTotalLength, spec.total_sequence_length);
  add(Role::kPastLength, spec.past_sequence_length);
  add(Role::kCachePosition, spec.cache_position);
  add(Role::kUseCache, spec.use_cache_branch);
  add(Role::kWriteIndices, spec.write_indices);
  add(Role::kNonpadLength, spec.nonpad_kv_seqlen);
  return roles;
}

std::vector<InputPort> StepInputs::ports(const ModelSpec& spec) {
  std::vector<InputPort> ports;
  for (const auto& [role, port] : roles(spec)) ports.push_back(port);
  for (const ConstantInput& constant : spec.constants) ports.push_back(constant.port);
  return ports;
}

std::vector<std::string> StepInputs::names(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const InputPort& port : ports(spec)) names.push_back(port.name);
  return names;
}

StepInputs::StepInputs(const ModelSpec& spec, const ort::Library& library)
    : ort_library_(library),
      constants_(spec, library),
      mask_(spec.attention_mask ? spec.attention_mask->dtype : DType::kInt64) {
  for (const auto& [role, port] : roles(spec)) inputs_.push_back({role, port, IntegerTensor(port.dtype)});
}

Dims StepInputs::dims_of(const Input& input, std::span<const RunRow> rows) const {
  const auto batch = static_cast<std::int64_t>(rows.size());
  const auto length = static_cast<std::int64_t>(rows[0].tokens.size());
  switch (input.role) {
    case Role::kIds:
      return input.port.rank == 1 ? Dims{batch * length} : Dims{batch, length};
    case Role::kPositions:
      return input.port.rank == 1 ? Dims{length} : Dims{batch, length};
    case Role::kCachePosition:
      return Dims{length};
    case Role::kSeqlensK:
    case Role::kWriteIndices:
    case Role::kNonpadLength:
      if (input.port.rank == 2) return Dims{batch, 1};
      return input.port.rank == 0 ? Dims{} : Dims{batch};
    case Role::kTotalLength:
    case Role::kPastLength:
    case Role::kUseCache:
      return input.port.rank == 0 ? Dims{} : Dims{1};
    case Role::kMask:
      break;
  }
  return Dims{};
}

void StepInputs::fill_input(Input& input, std::span<const RunRow> rows) {
  IntegerTensor& tensor = input.tensor;
  const std::size_t length = rows[0].tokens.size();
  const auto past_and_new = [length](const RunRow& row) { return row.past + static_cast<std::int64_t>(length); };
  switch (input.role) {
    case Role::kIds:
      for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::size_t t = 0; t < length; ++t) tensor.set(row * length + t, rows[row].tokens[t]);
      }
      return;
    case Role::kPositions:
      for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::size_t t = 0; t < length; ++t) {
          tensor.set(row * length + t, rows[row].past + static_cast<std::int64_t>(t));
        }
      }
      return;
    case Role::kCachePosition:
      for (std::size_t t = 0; t < length; ++t) tensor.set(t, rows[0].past + static_cast<std::int64_t>(t));
      return;
    case Role::kSeqlensK:
      for (std::size_t row = 0; row < tensor.size(); ++row) tensor.set(row, past_and_new(rows[row]) - 1);
      return;
    case Role::kWriteIndices:
      for (std::size_t row = 0; row < tensor.size(); ++row) tensor.set(row, rows[row].past);
      return;
    case Role::kNonpadLength:
      for (std::size_t row = 0; row < tensor.size(); ++row) tensor.set(row, past_and_new(rows[row]));
      return;
    case Role::kTotalLength: {
      std::int64_t longest = 0;
      for (const RunRow& row : rows) longest = std::max(longest, past_and_new(row));
      tensor.set(0, longest);
      return;
    }
    case Role::kPastLength:
      tensor.set(0, rows[0].past);
      return;
    case Role::kUseCache:
      tensor.set(0, rows[0].past > 0 ? 1 : 0);
      return;
    case Role::kMask:
      return;
  }
}

void StepInputs::fill(ort::RunFrame& frame, std::span<const RunRow> rows, std::int64_t mask_width) {
  check(!rows.empty(), "a run has no rows");
  std::size_t index = 0;
  for (Input& input : inputs_) {
    if (input.role == Role::kMask) {
      mask_rows_.clear();
      for (const RunRow& row : rows) mask_rows_.push_back({row.mask_first, row.mask_end});
      if (mask_.set(mask_rows_, mask_width)) frame.set_input(index, mask_.value(ort_library_));
    } else {
      if (input.tensor.reshape(dims_of(input, rows))) frame.set_input(index, input.tensor.value(ort_library_));
      fill_input(input, rows);
    }
    ++index;
  }
  constants_.fill(frame, index,
                  {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows[0].tokens.size())});
}

}  // namespace genai::runner
