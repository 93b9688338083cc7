#include "genai/sampling/temperature.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace genai::sampling {

Temperature make_temperature(float temperature, const RowScan& scan) {
  const bool is_safe = std::isfinite(scan.max / temperature) && std::isfinite(scan.min / temperature);
  return {.shift = is_safe ? 0.0F : scan.max, .divisor = temperature};
}

void apply_temperature(std::span<float> logits, float temperature) {
  if (temperature == 1.0F) return;
  const Temperature division = make_temperature(temperature, scan_row(logits));
  for (float& logit : logits) logit = division.of(logit);
}

float temperature_scale(float temperature) {
  return std::min(1.0F / temperature, std::numeric_limits<float>::max());
}

}  // namespace genai::sampling
