#pragma once

#include "genai/base/ids.h"
#include "genai/base/trace.h"
#include "genai/sched/scheduler.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace genai::engine {

struct EngineOptions {
  sched::SchedulerConfig scheduler;
  std::int64_t max_queue = 4096;   ///< requests that may be open; one more is refused
  bool prefix_cache = true;        ///< KV of what has ended is kept and found again, where the decoder can
  std::string kv_budget_source;    ///< where the memory for KV comes from, for errors ("--vram-limit 1GiB")
  std::int64_t context_limit = 0;  ///< tokens a sequence may have; 0 = only the model's own limit
  std::string context_source;      ///< where that limit comes from, for errors
  std::vector<TokenId> eos_ids;
  std::shared_ptr<Tracer> tracer;  ///< shared with the runner; null = one of the engine's own
};

}  // namespace genai::engine
