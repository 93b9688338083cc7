#pragma once

#include "genai/core/model_spec.h"
#include "genai/ort/session.h"
#include "genai/runner/integer_tensor.h"

#include <cstddef>
#include <vector>

namespace genai::runner {

/// The inputs of ModelSpec::constants. One thread.
class ConstantInputs {
 public:
  ConstantInputs(const ModelSpec& spec, const ort::Library& library);

  std::size_t size() const { return constants_.size(); }

  /// Binds to the frame's inputs from `first` on what has other dims than in the last call. ids_dims: of the ids, for
  /// constants of that shape.
  void fill(ort::RunFrame& frame, std::size_t first, const Dims& ids_dims);

 private:
  struct Constant {
    ConstantInput input;
    IntegerTensor tensor;
  };
  const ort::Library& ort_library_;
  std::vector<Constant> constants_;
};

}  // namespace genai::runner
