#pragma once

#include "genai/base/ids.h"

#include <cstddef>
#include <span>
#include <vector>

namespace genai {

/// Rows of one step that share a user hook. All views are loans that end with the call.
struct HookRows {
  std::span<float> logits;  ///< float32 [rows, vocab_size], row-major, writable
  std::size_t vocab_size = 0;
  std::vector<std::span<const TokenId>> tokens;  ///< a row's prompt and generated ids
};

/// User code that changes logits rows, called once a step for all rows of the requests that carry it.
/// Called on the engine thread. What it throws ends the requests of its rows.
class LogitsHook {
 public:
  virtual ~LogitsHook() = default;
  virtual void process(HookRows& rows) = 0;
};

/// User code that picks one id a row after all processors; called like LogitsHook.
class SamplerHook {
 public:
  virtual ~SamplerHook() = default;
  /// Returns rows.tokens.size() ids, each in [0, vocab_size); anything else ends the requests with an error.
  virtual std::vector<TokenId> sample(HookRows& rows) = 0;
};

}  // namespace genai
