#pragma once

#include "genai/sampling/kernels.h"

#include <span>

namespace genai::sampling {

/// Division by a temperature, as (logit - shift) / divisor. `shift` is 0, as in transformers' TemperatureLogitsWarper,
/// unless the quotient would overflow; then it is the largest logit, which leaves the softmax as it is.
struct Temperature {
  float shift = 0.0F;
  float divisor = 1.0F;
  float of(float logit) const { return (logit - shift) / divisor; }
};

/// temperature: > 0. scan: of the row that will be divided.
Temperature make_temperature(float temperature, const RowScan& scan);

/// Divides a row. logits: float32 [vocab], changed in place. temperature: > 0; 1 leaves the row untouched.
void apply_temperature(std::span<float> logits, float temperature);

/// 1 / temperature, but finite, so that 0 * scale is 0. temperature: > 0.
float temperature_scale(float temperature);

}  // namespace genai::sampling
