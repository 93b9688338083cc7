#include "genai/engine/output_queue.h"

#include "genai/base/error.h"

#include <iterator>
#include <string>
#include <utility>

namespace genai::engine {
namespace {

void merge(Event& into, Event&& from) {
  into.tokens.insert(into.tokens.end(), from.tokens.begin(), from.tokens.end());
  into.text += from.text;
  into.logprobs.insert(into.logprobs.end(), std::make_move_iterator(from.logprobs.begin()),
                       std::make_move_iterator(from.logprobs.end()));
  into.finish = from.finish;
  into.stop_index = from.stop_index;
  into.stop_token = from.stop_token;
  into.error = std::move(from.error);
  into.last = from.last;
  into.usage = from.usage;
  into.times = from.times;
  into.budget_cap = from.budget_cap;
  into.score = from.score;
}

}  // namespace

void OutputQueue::open(RequestId id, Delivery delivery) {
  auto channel = std::make_shared<Channel>();
  channel->delivery = delivery;
  const std::lock_guard lock(mutex_);
  channels_.emplace(id, std::move(channel));
}

std::shared_ptr<OutputQueue::Channel> OutputQueue::find(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto it = channels_.find(id);
  return it == channels_.end() ? nullptr : it->second;
}

void OutputQueue::push(RequestId id, Event event) {
  const std::shared_ptr<Channel> channel = find(id);
  if (!channel) return;
  bool wake = event.last;
  bool list = false;
  {
    const std::lock_guard lock(channel->mutex);
    wake = wake || channel->piece_waiters > 0;
    const bool is_wanted =
        channel->delivery == Delivery::kShared || (channel->delivery == Delivery::kSharedAtEnd && event.last);
    list = is_wanted && !channel->listed;
    channel->listed = channel->listed || list;
    // Merging only into the newest event keeps the order between choices. An error stays apart from valid output.
    if (!channel->events.empty() && channel->events.back().choice == event.choice && !event.error &&
        !channel->events.back().finish) {
      merge(channel->events.back(), std::move(event));
    } else {
      channel->events.push_back(std::move(event));
    }
  }
  if (wake) channel->ready.notify_all();
  if (list) list_ready(id);
}

void OutputQueue::list_ready(RequestId id) {
  {
    const std::lock_guard lock(ready_mutex_);
    ready_ids_.push_back(id);
  }
  ready_changed_.notify_one();
}

std::vector<OutputQueue::Ready> OutputQueue::wait_any(std::chrono::milliseconds timeout) {
  std::vector<RequestId> ids;
  {
    std::unique_lock lock(ready_mutex_);
    if (!ready_changed_.wait_for(lock, timeout, [&] { return shut_ || !ready_ids_.empty(); })) return {};
    if (ready_ids_.empty()) throw Error(ErrorCode::kAborted, "the engine is closed; no further event comes");
    ids.swap(ready_ids_);
  }
  std::vector<Ready> ready;
  ready.reserve(ids.size());
  for (const RequestId id : ids) {
    const std::shared_ptr<Channel> channel = find(id);
    if (!channel) continue;
    Ready& taken = ready.emplace_back(Ready{.id = id, .events = {}});
    {
      const std::lock_guard lock(channel->mutex);
      channel->listed = false;
      taken.events.assign(std::make_move_iterator(channel->events.begin()),
                          std::make_move_iterator(channel->events.end()));
      channel->events.clear();
    }
    if (taken.events.empty()) {
      ready.pop_back();  // wait() was quicker
    } else if (taken.events.back().last) {
      close(id);
    }
  }
  return ready;
}

std::vector<Event> OutputQueue::wait(RequestId id, std::chrono::milliseconds timeout, WaitFor wait_for) {
  const std::shared_ptr<Channel> channel = find(id);
  if (!channel) {
    throw Error(ErrorCode::kNotFound, "request " + std::to_string(id.value) +
                                          " is unknown: it was never submitted, was dropped, or its last "
                                          "event was already taken");
  }
  std::vector<Event> events;
  {
    std::unique_lock lock(channel->mutex);
    const auto is_there = [&] {
      if (channel->closed) return true;
      return !channel->events.empty() && (wait_for == WaitFor::kPiece || channel->events.back().last);
    };
    if (wait_for == WaitFor::kPiece) ++channel->piece_waiters;
    const bool there = channel->ready.wait_for(lock, timeout, is_there);
    if (wait_for == WaitFor::kPiece) --channel->piece_waiters;
    if (!there) return {};
    events.assign(std::make_move_iterator(channel->events.begin()), std::make_move_iterator(channel->events.end()));
    channel->events.clear();
  }
  if (!events.empty() && events.back().last) close(id);
  return events;
}

void OutputQueue::close(RequestId id) {
  std::shared_ptr<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    const auto it = channels_.find(id);
    if (it == channels_.end()) return;
    channel = std::move(it->second);
    channels_.erase(it);
  }
  {
    const std::lock_guard lock(channel->mutex);
    channel->closed = true;
  }
  channel->ready.notify_all();
}

void OutputQueue::shut() {
  {
    const std::lock_guard lock(ready_mutex_);
    shut_ = true;
  }
  ready_changed_.notify_all();
}

}  // namespace genai::engine
