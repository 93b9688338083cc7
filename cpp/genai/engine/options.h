#pragma once

#include "genai/base/ids.h"
#include "genai/sched/scheduler.h"

#include <cstdint>
#include <string>
#include <vector>

namespace genai::engine {

struct EngineOptions {
  sched::SchedulerConfig scheduler;
  std::int64_t max_queue = 4096;     ///< requests that may wait; one more is refused
  std::int64_t kv_budget_bytes = 0;  ///< bytes that KV may take; 0 = no limit
  std::string kv_budget_source;      ///< where the budget comes from, for errors ("--vram-limit 1GiB")
  std::int64_t context_limit = 0;    ///< tokens a sequence may have; 0 = only the model's own limit
  std::string context_source;        ///< where that limit comes from, for errors
  std::vector<TokenId> eos_ids;
};

}  // namespace genai::engine
