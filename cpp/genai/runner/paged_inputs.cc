#include "genai/runner/paged_inputs.h"

#include "genai/base/error.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

namespace genai::runner {

DecodeMemo decode_memo_from_environment() {
  const char* const value = std::getenv("ONNX_GENAI_DECODE_MEMO");
  return value != nullptr && std::string_view(value) == "0" ? DecodeMemo::kOff : DecodeMemo::kOn;
}

std::vector<std::pair<PagedInputs::Role, InputPort>> PagedInputs::roles(const ModelSpec& spec) {
  std::vector<std::pair<Role, InputPort>> roles = {{Role::kIds, spec.input_ids}};
  const auto add = [&roles](Role role, const std::optional<InputPort>& port) {
    if (port) roles.emplace_back(role, *port);
  };
  add(Role::kPositions, spec.position_ids);
  add(Role::kCumulative, spec.cumulative_sequence_length);
  add(Role::kPast, spec.past_seqlens);
  add(Role::kBlockTable, spec.block_table);
  add(Role::kLogitsIndices, spec.logits_indices);
  add(Role::kPromptRows, spec.prompt_rows);
  add(Role::kMetadata, spec.attention_metadata);
  return roles;
}

std::vector<InputPort> PagedInputs::ports(const ModelSpec& spec) {
  std::vector<InputPort> ports;
  for (const auto& [role, port] : roles(spec)) ports.push_back(port);
  for (const ConstantInput& constant : spec.constants) ports.push_back(constant.port);
  return ports;
}

PagedInputs::PagedInputs(const ModelSpec& spec, const ort::Library& library, DecodeMemo memo)
    : ort_library_(library), block_size_(spec.block_size), memo_(memo), constants_(spec, library) {
  for (const auto& [role, port] : roles(spec)) inputs_.push_back({role, port, IntegerTensor(port.dtype)});
}

/// Blocks that a sequence's positions lie in after the step.
std::int64_t PagedInputs::num_blocks(const ScheduledSequence& sequence) const {
  return (sequence.num_computed_tokens + sequence.num_scheduled_tokens + block_size_ - 1) / block_size_;
}

PagedInputs::Sizes PagedInputs::sizes_of(const StepPlan& plan, std::int64_t num_hot_blocks) const {
  Sizes sizes;
  std::int64_t rows = 0;
  for (const ScheduledSequence& sequence : plan.sequences) {
    const std::int64_t blocks = num_blocks(sequence);
    check(blocks <= static_cast<std::int64_t>(sequence.block_table.size()),
          "a step plan runs tokens that have no KV block");
    // Blocks before these were checked when they were written.
    const auto first = static_cast<std::size_t>(sequence.num_computed_tokens / block_size_);
    for (const BlockId block : sequence.block_table.subspan(first, static_cast<std::size_t>(blocks) - first)) {
      check(block >= 0 && block < num_hot_blocks, "a step plan has a KV block outside of the hot tier");
    }
    sizes.columns = std::max(sizes.columns, blocks);
    sizes.tokens += sequence.num_scheduled_tokens;
    if (sequence.needs_logits) ++rows;
  }
  sizes.sequences = static_cast<std::int64_t>(plan.sequences.size());
  sizes.rows = std::max<std::int64_t>(rows, 1);
  return sizes;
}

Dims PagedInputs::dims_of(const Input& input, const Sizes& sizes) {
  switch (input.role) {
    case Role::kIds:
    case Role::kPositions:
      return input.port.rank == 1 ? Dims{sizes.tokens} : Dims{1, sizes.tokens};
    case Role::kCumulative:
      return Dims{sizes.sequences + 1};
    case Role::kPast:
      return Dims{sizes.sequences};
    case Role::kBlockTable:
      return Dims{sizes.sequences, sizes.columns};
    case Role::kLogitsIndices:
      return Dims{sizes.rows};
    case Role::kPromptRows:
      return Dims{sizes.tokens};
    case Role::kMetadata:
      return Dims{3};
  }
  return Dims{};
}

void PagedInputs::fill_input(Input& input, const StepPlan& plan, const Sizes& sizes) const {
  IntegerTensor& tensor = input.tensor;
  std::size_t index = 0;
  switch (input.role) {
    case Role::kIds:
      for (const ScheduledSequence& sequence : plan.sequences) {
        const auto first = static_cast<std::size_t>(sequence.num_computed_tokens);
        const auto count = static_cast<std::size_t>(sequence.num_scheduled_tokens);
        for (const TokenId token : sequence.tokens.subspan(first, count)) tensor.set(index++, token);
      }
      return;
    case Role::kPositions:
      for (const ScheduledSequence& sequence : plan.sequences) {
        const std::int64_t end = sequence.num_computed_tokens + sequence.num_scheduled_tokens;
        for (std::int64_t p = sequence.num_computed_tokens; p < end; ++p) tensor.set(index++, p);
      }
      return;
    case Role::kCumulative: {
      std::int64_t sum = 0;
      tensor.set(index++, 0);
      for (const ScheduledSequence& sequence : plan.sequences) {
        tensor.set(index++, sum += sequence.num_scheduled_tokens);
      }
      return;
    }
    case Role::kPast:
      for (const ScheduledSequence& sequence : plan.sequences) tensor.set(index++, sequence.num_computed_tokens);
      return;
    case Role::kBlockTable: {
      auto target = tensor.elements<BlockId>().begin();
      for (const ScheduledSequence& sequence : plan.sequences) {
        const std::int64_t blocks = num_blocks(sequence);
        target = std::copy_n(sequence.block_table.begin(), blocks, target);
        target = std::fill_n(target, sizes.columns - blocks, BlockId{-1});
      }
      return;
    }
    case Role::kLogitsIndices: {
      std::int64_t end = 0;
      tensor.set(0, 0);
      for (const ScheduledSequence& sequence : plan.sequences) {
        end += sequence.num_scheduled_tokens;
        if (sequence.needs_logits) tensor.set(index++, end - 1);
      }
      return;
    }
    case Role::kPromptRows:
      for (const ScheduledSequence& sequence : plan.sequences) {
        const std::int64_t end = sequence.num_computed_tokens + sequence.num_scheduled_tokens;
        for (std::int64_t p = sequence.num_computed_tokens; p < end; ++p) {
          tensor.set(index++, p < sequence.num_prompt_tokens ? 1 : 0);
        }
      }
      return;
    case Role::kMetadata: {
      std::int64_t tokens = 0;
      std::int64_t positions = 0;
      for (const ScheduledSequence& sequence : plan.sequences) {
        tokens = std::max(tokens, sequence.num_scheduled_tokens);
        positions = std::max(positions, sequence.num_computed_tokens + sequence.num_scheduled_tokens);
      }
      tensor.set(0, tokens);
      tensor.set(1, positions);
      tensor.set(2, positions);
      return;
    }
  }
}

void PagedInputs::fill(ort::RunFrame& frame, const StepPlan& plan, std::int64_t num_hot_blocks) {
  const Sizes sizes = sizes_of(plan, num_hot_blocks);
  if (is_steady(plan, sizes)) return replay(plan);
  row_blocks_.clear();
  std::size_t index = 0;
  for (Input& input : inputs_) {
    const bool is_changed = input.tensor.reshape(dims_of(input, sizes));
    if (is_changed || memo_ == DecodeMemo::kOff) frame.set_input(index, input.tensor.value(ort_library_));
    fill_input(input, plan, sizes);
    ++index;
  }
  constants_.fill(frame, index, dims_of(inputs_.front(), sizes));
  filled_ = sizes;
  const bool is_decode = sizes.tokens == sizes.sequences && sizes.rows == sizes.sequences;
  if (memo_ == DecodeMemo::kOff || !is_decode) return;
  for (const ScheduledSequence& sequence : plan.sequences) row_blocks_.push_back(num_blocks(sequence));
}

/// Whether the tensors hold a decode step of the same sizes, where no row has more ids than the plan has: the padding
/// behind them can then stay.
bool PagedInputs::is_steady(const StepPlan& plan, const Sizes& sizes) const {
  if (row_blocks_.empty() || sizes != filled_) return false;
  return std::equal(
      plan.sequences.begin(), plan.sequences.end(), row_blocks_.begin(), row_blocks_.end(),
      [this](const ScheduledSequence& sequence, std::int64_t held) { return num_blocks(sequence) >= held; });
}

void PagedInputs::replay(const StepPlan& plan) {
  for (Input& input : inputs_) {
    switch (input.role) {
      case Role::kIds:
      case Role::kPositions:
      case Role::kPast:
      case Role::kPromptRows:
      case Role::kMetadata:
        fill_input(input, plan, filled_);
        break;
      case Role::kBlockTable:
        replay_block_table(input.tensor, plan);
        break;
      case Role::kCumulative:
      case Role::kLogitsIndices:
        break;  // one token of each sequence: always 0, 1, 2, ...
    }
  }
  ++num_replays_;
}

/// Copies every id that is needed: a fork or a swap changes earlier ones, too, and a look whether it did costs as much.
void PagedInputs::replay_block_table(IntegerTensor& tensor, const StepPlan& plan) {
  const std::span<BlockId> table = tensor.elements<BlockId>();
  for (std::size_t row = 0; row < plan.sequences.size(); ++row) {
    const ScheduledSequence& sequence = plan.sequences[row];
    const std::span<BlockId> target = table.subspan(row * static_cast<std::size_t>(filled_.columns));
    row_blocks_[row] = num_blocks(sequence);
    std::copy_n(sequence.block_table.begin(), row_blocks_[row], target.begin());
  }
}

}  // namespace genai::runner
