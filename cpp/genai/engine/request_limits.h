#pragma once

#include "genai/core/request.h"
#include "genai/engine/options.h"
#include "genai/runner/model_runner.h"

#include <cstdint>
#include <optional>
#include <string>

namespace genai::engine {

/// Tokens that a sequence may have, prompt and output; 0 = no limit known.
struct ContextLimit {
  std::int64_t tokens = 0;
  std::string source;  ///< where the limit comes from, for errors
};

/// What a request may ask of a loaded model. Const methods are safe from any thread.
class RequestLimits {
 public:
  /// capacity_tokens: positions that the hot tier holds, at least as many as one sequence may have.
  /// vocab_size: ids that may be sampled.
  RequestLimits(const runner::RunnerInfo& info, const EngineOptions& options, std::int64_t capacity_tokens,
                std::int64_t vocab_size);

  const ContextLimit& context() const { return context_; }

  /// Throws kInvalidArgument, kContextOverflow.
  void validate(const Request& request) const;

  /// Tokens that each choice may have, prompt and output; `cap` is set when memory allows fewer than asked.
  /// Requires: validate() passed.
  std::int64_t grant_total_tokens(const Request& request, std::optional<BudgetCap>& cap) const;

 private:
  void check_prompt(const Request& request) const;
  void check_encoder_inputs(const Request& request) const;
  void check_adapters(const Request& request) const;
  void check_beams(const Request& request) const;
  void check_room(std::int64_t prompt_size) const;

  ContextLimit context_;
  std::int64_t capacity_tokens_;
  std::int64_t vocab_size_;
  std::int64_t row_width_;
  std::int64_t kv_bytes_per_token_;
  std::string kv_budget_source_;
  int max_num_seqs_;
  bool has_encoder_;
  std::string needed_adapter_input_;  ///< empty = requests may have no adapter
};

}  // namespace genai::engine
