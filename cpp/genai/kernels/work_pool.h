#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace genai::kernels {

/// Objects of type Work, the memory of one call each, that no call uses at the moment. Thread-safe.
template <typename Work>
class WorkPool {
 public:
  /// Gives `work` back when it goes.
  struct Return {
    WorkPool* pool;
    void operator()(Work* work) const { pool->put(std::unique_ptr<Work>(work)); }
  };
  using Loan = std::unique_ptr<Work, Return>;

  /// One that is free, or a new one.
  Loan take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return Loan(std::make_unique<Work>().release(), Return{this});
    Loan loan(free_.back().release(), Return{this});
    free_.pop_back();
    return loan;
  }

 private:
  void put(std::unique_ptr<Work> work) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(work));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Work>> free_;
};

}  // namespace genai::kernels
