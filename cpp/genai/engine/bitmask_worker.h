#pragma once

#include "genai/base/error.h"
#include "genai/base/trace.h"
#include "genai/core/constraint.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

namespace genai::engine {

/// A bitmask to compute. Pointers are loans until BitmaskWorker::finish().
struct BitmaskJob {
  TokenMatcher* matcher = nullptr;
  std::span<std::uint32_t> bitmask;

  std::optional<Error> error;  ///< outcome: the bitmask is filled unless this is set
};

/// Computes the bitmasks of a step's rows beside the model's run, on a thread of its own that is started when it is
/// first needed. Used by one thread.
///
///     worker.begin(jobs);  runner.execute(plan);  worker.finish();  // every job is done
class BitmaskWorker {
 public:
  /// `trace`: what the thread records; a loan for the object's life.
  explicit BitmaskWorker(TraceBuffer& trace) : trace_(trace) {}
  ~BitmaskWorker();
  BitmaskWorker(const BitmaskWorker&) = delete;
  BitmaskWorker& operator=(const BitmaskWorker&) = delete;

  /// Starts the jobs. Requires: the last ones are finished.
  void begin(std::span<BitmaskJob> jobs);
  /// Returns when all jobs are done; the caller helps. Does nothing without jobs.
  void finish();
  /// The thread that works, none while there is none. It may be read after the worker is gone.
  std::shared_ptr<const std::atomic<std::thread::id>> thread_id() const { return id_; }

 private:
  void loop();
  void work();

  TraceBuffer& trace_;
  std::shared_ptr<std::atomic<std::thread::id>> id_ = std::make_shared<std::atomic<std::thread::id>>();
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::span<BitmaskJob> jobs_;        ///< guarded by mutex_ while it changes; constant between begin() and finish()
  std::atomic<std::size_t> next_{0};  ///< job that nobody has taken yet
  std::size_t num_done_ = 0;          ///< guarded by mutex_
  bool working_ = false;              ///< the thread is in work(); guarded by mutex_
  bool wanted_ = false;               ///< jobs were begun that the thread has not seen; guarded by mutex_
  bool stopping_ = false;             ///< guarded by mutex_
};

}  // namespace genai::engine
