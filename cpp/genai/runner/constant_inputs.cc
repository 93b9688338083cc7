#include "genai/runner/constant_inputs.h"

#include <cstdint>
#include <span>

namespace genai::runner {

ConstantInputs::ConstantInputs(const ModelSpec& spec, const ort::Library& library) : ort_library_(library) {
  for (const ConstantInput& constant : spec.constants) {
    constants_.push_back({constant, IntegerTensor(constant.port.dtype)});
  }
}

void ConstantInputs::fill(ort::RunFrame& frame, std::size_t first, const Dims& ids_dims) {
  for (std::size_t index = 0; index < constants_.size(); ++index) {
    const ConstantInput& input = constants_[index].input;
    IntegerTensor& tensor = constants_[index].tensor;
    const bool is_fixed = input.shape == ConstantInput::Shape::kFixed;
    if (!tensor.reshape(is_fixed ? Dims(std::span<const std::int64_t>(input.dims)) : ids_dims)) continue;
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, input.value);
    frame.set_input(first + index, tensor.value(ort_library_));
  }
}

}  // namespace genai::runner
