#include "genai/engine/swap_cost_meter.h"

#include <doctest/doctest.h>

namespace genai::engine {
namespace {

runner::RunnerInfo info(std::int64_t num_warm_blocks) {
  runner::RunnerInfo made;
  made.block_size = 16;
  made.num_warm_blocks = num_warm_blocks;
  return made;
}

TEST_CASE("SwapCosts_BeforeAnythingWasMeasured_AreTheGuess") {
  CHECK(SwapCostMeter(info(1), 4'000'000).costs({}).move_seconds == doctest::Approx(2e-3));
  CHECK(SwapCostMeter(info(0), 4'000'000).costs({}).move_seconds == doctest::Approx(16e-3));
  CHECK(SwapCostMeter(info(1), 4'000'000).costs({}).recompute_seconds == 1.0);
}

TEST_CASE("SwapCosts_Measured_FollowThePrefillAndTheMoves") {
  SwapCostMeter meter(info(1), 4'000'000);
  meter.ran(100, 100, 0.5);
  CHECK(meter.costs({}).recompute_seconds == doctest::Approx(16 * 0.005));

  meter.ran(0, 64, 10.0);   // decodes
  meter.ran(15, 15, 10.0);  // too short to tell
  meter.ran(20, 80, 10.0);  // mostly decodes
  CHECK(meter.costs({}).recompute_seconds == doctest::Approx(16 * 0.005));

  for (int i = 0; i < 200; ++i) meter.ran(200, 200, 0.2);
  CHECK(meter.costs({}).recompute_seconds == doctest::Approx(16 * 0.001).epsilon(1e-6));
  CHECK(meter.costs({.moved_blocks = 15, .move_seconds = 1.0}).move_seconds == doctest::Approx(2e-3));
  CHECK(meter.costs({.moved_blocks = 20, .move_seconds = 1.0}).move_seconds == doctest::Approx(0.1));
}

}  // namespace
}  // namespace genai::engine
