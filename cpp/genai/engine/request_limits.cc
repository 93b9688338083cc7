#include "genai/engine/request_limits.h"

#include "genai/base/error.h"
#include "genai/sampling/validate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace genai::engine {
namespace {

constexpr std::int64_t kDefaultNewTokens = 512;  // when neither the request nor the model gives a limit

/// The smallest known limit wins; equal ones keep the first source.
ContextLimit smallest_limit(const runner::RunnerInfo& info, const EngineOptions& options) {
  ContextLimit best;
  const auto offer = [&](std::int64_t tokens, const std::string& source) {
    if (tokens > 0 && (best.tokens == 0 || tokens < best.tokens)) best = {tokens, source};
  };
  offer(options.context_limit, options.context_source);
  offer(info.context_limit, "the KV capacity that is fixed in the graph");
  return best;
}

}  // namespace

RequestLimits::RequestLimits(const runner::RunnerInfo& info, const EngineOptions& options, std::int64_t capacity_tokens,
                             std::int64_t vocab_size)
    : context_(smallest_limit(info, options)),
      capacity_tokens_(capacity_tokens),
      vocab_size_(vocab_size),
      row_width_(info.vocab_size),
      kv_bytes_per_token_(info.kv_bytes_per_token),
      kv_budget_source_(options.kv_budget_source),
      max_num_seqs_(options.scheduler.max_num_seqs),
      has_encoder_(info.has_encoder),
      needed_adapter_input_(info.needed_adapter_input) {}

void RequestLimits::validate(const Request& request) const {
  check_prompt(request);
  check_encoder_inputs(request);
  check_adapters(request);
  sampling::validate(request.params, vocab_size_);
  if (request.timeout_seconds && !(*request.timeout_seconds > 0.0 && std::isfinite(*request.timeout_seconds))) {
    throw Error(ErrorCode::kInvalidArgument, "timeout is " + std::to_string(*request.timeout_seconds) +
                                                 " seconds; allowed: a finite number above 0, or none");
  }
  if (request.params.num_beams > 1) check_beams(request);
  check_room(static_cast<std::int64_t>(request.prompt.size()));
}

void RequestLimits::check_prompt(const Request& request) const {
  if (request.prompt.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token");
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= 0 && request.prompt[i] < row_width_) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "prompt token " + std::to_string(i) + " has id " + std::to_string(request.prompt[i]) +
                    "; allowed: 0.." + std::to_string(row_width_ - 1) +
                    " (the width of the model's logits). The tokenizer may not belong to this model.");
  }
}

void RequestLimits::check_encoder_inputs(const Request& request) const {
  if (has_encoder_ == (request.encoder_inputs != nullptr)) return;
  throw Error(ErrorCode::kInvalidArgument,
              has_encoder_ ? "the request has no encoder inputs; the encoder of this model needs them"
                           : "the request has encoder inputs, and this model has no encoder; leave them out");
}

void RequestLimits::check_adapters(const Request& request) const {
  for (std::size_t i = 0; i < request.adapters.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : request.adapters[i - 1].first + 1;
    check(request.adapters[i].first >= least, "the adapters of a request are not in order");
  }
  if (needed_adapter_input_.empty() || adapter_at(request.adapters, 0) != nullptr) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the request has no adapter, and this model needs one: its graph has no value of its own for \"" +
                  needed_adapter_input_ + "\". Load an adapter and name it in the request.");
}

void RequestLimits::check_beams(const Request& request) const {
  if (request.params.num_beams > max_num_seqs_) {
    throw Error(ErrorCode::kInvalidArgument, "num_beams is " + std::to_string(request.params.num_beams) +
                                                 "; allowed: at most max_num_seqs, which is " +
                                                 std::to_string(max_num_seqs_) + " for this model");
  }
  if (request.grammar) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "a grammar (response_format, required tool calls) and num_beams above 1 cannot be combined; leave one out");
  }
  if (request.sampler_hook) {
    throw Error(ErrorCode::kInvalidArgument,
                "a sampler and num_beams above 1 contradict each other: beam search does not sample; leave one out");
  }
}

void RequestLimits::check_room(std::int64_t prompt_size) const {
  const std::string size = std::to_string(prompt_size);
  if (context_.tokens > 0 && prompt_size >= context_.tokens) {
    const std::string limit = std::to_string(context_.tokens);
    throw Error(ErrorCode::kContextOverflow, "the prompt has " + size + " tokens and leaves no room for an answer (" +
                                                 size + "/" + limit + "); the limit is " + limit + " tokens, from " +
                                                 context_.source +
                                                 ". Shorten the prompt, or use a larger context window.");
  }
  if (prompt_size >= capacity_tokens_) {
    throw Error(ErrorCode::kContextOverflow, "the prompt has " + size + " tokens, but the memory for KV (" +
                                                 kv_budget_source_ + ") holds " + std::to_string(capacity_tokens_) +
                                                 " tokens of this model (" + std::to_string(kv_bytes_per_token_) +
                                                 " bytes each). Shorten the prompt or raise the limit.");
  }
}

std::int64_t RequestLimits::grant_total_tokens(const Request& request, std::optional<BudgetCap>& cap) const {
  const std::int64_t size = static_cast<std::int64_t>(request.prompt.size());
  std::int64_t total = context_.tokens > 0 ? context_.tokens : size + kDefaultNewTokens;
  if (request.params.max_new_tokens > 0) {
    const std::int64_t asked = request.params.max_new_tokens;
    const std::int64_t room = std::numeric_limits<std::int64_t>::max() - size;
    total = size + std::min(asked, room);
    if (context_.tokens > 0) total = std::min(total, context_.tokens);
  }
  if (total > capacity_tokens_) {
    cap = BudgetCap{.asked = total - size, .granted = capacity_tokens_ - size};
    total = capacity_tokens_;
  }
  return total;
}

}  // namespace genai::engine
