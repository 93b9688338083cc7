#pragma once

#include "genai/base/dtype.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace genai {

/// A tensor that a request carries.
struct NamedTensor {
  std::string name;
  DType dtype = DType::kInt64;
  std::vector<std::int64_t> dims;  ///< [1, ...]: the batch is one request
  std::vector<std::byte> bytes;    ///< row-major; as many as dims and dtype say
};

/// What the encoder of an encoder-decoder reads for one request: the source. Also holds what the decoder reads of it
/// directly (a mask), by the name of the decoder's input. Shared by all sequences of the request; never changed.
struct EncoderInputs {
  std::vector<NamedTensor> tensors;
  std::int64_t num_tokens = 0;  ///< of the source, for Usage; 0 when it is no text

  /// null when there is none.
  const NamedTensor* find(std::string_view name) const {
    const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
    return found == tensors.end() ? nullptr : &*found;
  }
};

}  // namespace genai
