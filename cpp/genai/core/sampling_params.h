#pragma once

#include "genai/base/ids.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace genai {

/// When beam search stops; as `early_stopping` of transformers.
enum class EarlyStopping {
  kHeuristic,  ///< False: when no running beam is likely to beat the finished ones
  kFirst,      ///< True: as soon as there are num_beams finished ones
  kNever,      ///< "never": when no running beam can beat the finished ones
};

/// How one request is sampled. Field names, ranges and off values are those of `onnx_genai.SamplingParams`
/// (`python/onnx_genai/types.py`), which documents them; package defaults are already filled in here.
struct SamplingParams {
  std::int64_t max_new_tokens = 0;  ///< 0 = fill the context
  std::int64_t min_new_tokens = 0;
  float temperature = 1.0F;
  std::int64_t top_k = 0;
  float top_p = 1.0F;
  float min_p = 0.0F;
  float typical_p = 1.0F;
  float top_a = 0.0F;
  int mirostat = 0;
  float mirostat_tau = 5.0F;
  float mirostat_eta = 0.1F;
  float xtc_probability = 0.0F;
  float xtc_threshold = 0.1F;
  float repetition_penalty = 1.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  float dry_multiplier = 0.0F;
  float dry_base = 1.75F;
  std::int64_t dry_allowed_length = 2;
  std::vector<TokenId> dry_sequence_breakers = {};
  std::int64_t no_repeat_ngram_size = 0;
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::vector<std::vector<TokenId>> bad_words = {};
  std::vector<TokenId> suppress_tokens = {};
  std::vector<TokenId> begin_suppress_tokens = {};
  std::vector<std::pair<std::int64_t, TokenId>> forced_tokens = {};  ///< output position -> id
  std::vector<std::string> stop = {};                                ///< UTF-8, none empty
  std::vector<TokenId> stop_token_ids = {};
  bool include_stop = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  std::vector<TokenId> visible_special_tokens = {};  ///< are not skipped
  std::optional<std::uint64_t> seed = {};
  int n = 1;          ///< choices; with num_beams > 1 the best n beams
  int num_beams = 1;  ///< > 1 = beam search
  float length_penalty = 1.0F;
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;
  bool logprobs = false;
  int top_logprobs = 0;
  /// Rows of logits that are all equal are no fault of the model. Not in Python's SamplingParams.
  bool accept_equal_logits = false;
};

}  // namespace genai
