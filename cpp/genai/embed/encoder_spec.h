#pragma once

#include "genai/base/dtype.h"
#include "genai/core/model_spec.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace genai::embed {

/// How the vectors of a text's tokens become one vector.
enum class Pooling {
  kMean,
  kCls,           ///< the first token
  kMax,           ///< the largest of each component
  kLast,          ///< the last token
  kWeightedMean,  ///< weights 1, 2, 3, ... by position
  kMeanSqrt,      ///< the sum divided by the square root of the number of tokens
};

/// All that is to be known of an encoder: a graph that takes whole texts and keeps nothing between runs. Made by Python
/// (`graph/encoder.py`); roles come from the graph, never from a model name.
struct EncoderSpec {
  std::string model_path;  ///< absolute path of the .onnx file

  InputPort input_ids;                      ///< [batch, sequence], padded on the right
  std::optional<InputPort> attention_mask;  ///< 1 for a token, 0 for padding; without it only equal lengths share a run
  std::optional<InputPort> token_types;     ///< which of two texts a token belongs to
  std::optional<InputPort> position_ids;    ///< 0, 1, 2, ...
  std::vector<KvPair> pasts;                ///< inputs of a past, which is empty

  std::string output;
  DType output_dtype = DType::kFloat32;  ///< float32, float16 or bfloat16
  bool is_pooled = false;                ///< the output is [batch, width]; else [batch, sequence, width]
  std::vector<Pooling> pooling;          ///< not is_pooled: at least one; their results stand one after another
  std::int64_t width = 0;                ///< last dimension of the output, > 0

  std::int64_t pad_id = 0;
  std::int64_t vocab_size = 0;  ///< ids are below it; 0 = unknown
  std::int64_t max_batch = 0;   ///< rows that a run may have; 0 = any
};

}  // namespace genai::embed
