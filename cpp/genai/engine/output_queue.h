#pragma once

#include "genai/base/ids.h"
#include "genai/core/request.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace genai::engine {

/// What a reader waits for.
enum class WaitFor {
  kPiece,  ///< any event
  kEnd,    ///< the last event of the request: the reader is not woken for each token
};

/// Carries events from the engine thread to the callers that wait for them. Events that nobody has taken yet are merged
/// by choice, so a slow reader costs no more memory than its own output. Thread-safe.
class OutputQueue {
 public:
  /// Makes a place for the request's events; before the engine may push any.
  void open(RequestId id);

  /// Adds an event; dropped when the request was closed by its reader.
  void push(RequestId id, Event event);

  /// Takes all events of the request, waiting up to `timeout` for what `wait_for` says. Empty = timed out (with kEnd
  /// also when there are pieces: they stay). After the event with `last` the request is forgotten. Throws kNotFound for
  /// a request that is unknown, closed or already finished.
  std::vector<Event> wait(RequestId id, std::chrono::milliseconds timeout, WaitFor wait_for = WaitFor::kPiece);

  /// Forgets the request and what it holds; unknown ids are ignored. Wakes its waiters.
  void close(RequestId id);

 private:
  struct Channel {
    std::mutex mutex;
    std::condition_variable ready;
    std::deque<Event> events;  // guarded by mutex
    bool closed = false;       // guarded by mutex
    int piece_waiters = 0;     // guarded by mutex; readers to wake for any event
  };
  std::shared_ptr<Channel> find(RequestId id);

  std::mutex mutex_;
  std::unordered_map<RequestId, std::shared_ptr<Channel>> channels_;  // guarded by mutex_; shared with waiters
};

}  // namespace genai::engine
