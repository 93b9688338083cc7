#include "genai/engine/bitmask_worker.h"

#include <exception>

namespace genai::engine {
namespace {

void run(BitmaskJob& job) {
  try {
    job.matcher->fill_bitmask(job.bitmask);
  } catch (const Error& error) {
    job.error = error;
  } catch (const std::exception& error) {
    job.error = Error(ErrorCode::kInternal, error.what());
  }
}

}  // namespace

BitmaskWorker::~BitmaskWorker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BitmaskWorker::begin(std::span<BitmaskJob> jobs) {
  if (jobs.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    check(jobs_.empty(), "bitmasks were begun twice");
    jobs_ = jobs;
    next_ = 0;
    num_done_ = 0;
    wanted_ = true;
  }
  if (!thread_.joinable()) {
    thread_ = std::thread([this] {
      *id_ = std::this_thread::get_id();
      loop();
      *id_ = std::thread::id();  // the system may use it again
    });
  }
  changed_.notify_all();
}

void BitmaskWorker::finish() {
  if (jobs_.empty()) return;
  work();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_done_ == jobs_.size() && !working_; });
  jobs_ = {};
  wanted_ = false;
}

/// Takes jobs until there are none.
void BitmaskWorker::work() {
  std::size_t done = 0;
  for (std::size_t i = next_++; i < jobs_.size(); i = next_++) {
    run(jobs_[i]);
    ++done;
  }
  const std::lock_guard lock(mutex_);
  num_done_ += done;
}

void BitmaskWorker::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || wanted_; });
    if (stopping_) return;
    wanted_ = false;
    working_ = true;
    lock.unlock();
    {
      const TraceSpan span(trace_, TraceName::kBitmask);
      work();
    }
    lock.lock();
    working_ = false;
    changed_.notify_all();
  }
}

}  // namespace genai::engine
