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

/// Who takes the events of a request.
enum class Delivery {
  kOwn,          ///< wait() for this request
  kShared,       ///< wait_any(), which returns as soon as there is any event
  kSharedAtEnd,  ///< wait_any(), which takes no notice of the request before its last event
};

/// Carries events from the engine thread to the callers that wait for them. Events that nobody has taken yet are merged
/// by choice, so a slow reader costs no more memory than its own output. Thread-safe.
class OutputQueue {
 public:
  /// Makes a place for the request's events; before the engine may push any.
  void open(RequestId id, Delivery delivery = Delivery::kOwn);

  /// Adds an event; dropped when the request was closed by its reader.
  void push(RequestId id, Event event);

  /// Takes all events of the request, waiting up to `timeout` for what `wait_for` says. Empty = timed out (with kEnd
  /// also when there are pieces: they stay). After the event with `last` the request is forgotten. Throws kNotFound for
  /// a request that is unknown, closed or already finished.
  std::vector<Event> wait(RequestId id, std::chrono::milliseconds timeout, WaitFor wait_for = WaitFor::kPiece);

  /// All events that a shared request had at one moment.
  struct Ready {
    RequestId id;
    std::vector<Event> events;
  };
  /// Takes the events of all shared requests that have some, waiting up to `timeout` for the first. Empty = timed out,
  /// or what was there has been closed meanwhile. A request is forgotten after its event with `last`. Throws kAborted
  /// when shut() was called and nothing is left. Several callers share the requests between them; for the order of one
  /// request's events there should be one.
  std::vector<Ready> wait_any(std::chrono::milliseconds timeout);

  /// Forgets the request and what it holds; unknown ids are ignored. Wakes its waiters.
  void close(RequestId id);

  /// No event follows: wakes wait_any() for good. What was pushed before can still be taken.
  void shut();

 private:
  struct Channel {
    std::mutex mutex;
    std::condition_variable ready;
    std::deque<Event> events;  // guarded by mutex
    bool closed = false;       // guarded by mutex
    int piece_waiters = 0;     // guarded by mutex; readers to wake for any event
    bool listed = false;       // guarded by mutex; its id is in ready_ids_
    Delivery delivery = Delivery::kOwn;
  };
  std::shared_ptr<Channel> find(RequestId id);
  void list_ready(RequestId id);

  std::mutex mutex_;
  std::unordered_map<RequestId, std::shared_ptr<Channel>> channels_;  // guarded by mutex_; shared with waiters

  std::mutex ready_mutex_;
  std::condition_variable ready_changed_;
  std::vector<RequestId> ready_ids_;  // guarded by ready_mutex_; shared requests that have events
  bool shut_ = false;                 // guarded by ready_mutex_
};

}  // namespace genai::engine
