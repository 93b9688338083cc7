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
  into.budget_cap = from.budget_cap;
}

}  // namespace

void OutputQueue::open(RequestId id) {
  const std::lock_guard lock(mutex_);
  channels_.emplace(id, std::make_shared<Channel>());
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
  {
    const std::lock_guard lock(channel->mutex);
    wake = wake || channel->piece_waiters > 0;
    // Merging only into the newest event keeps the order between choices. An error stays apart from valid output.
    if (!channel->events.empty() && channel->events.back().choice == event.choice && !event.error &&
        !channel->events.back().finish) {
      merge(channel->events.back(), std::move(event));
    } else {
      channel->events.push_back(std::move(event));
    }
  }
  if (wake) channel->ready.notify_all();
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

}  // namespace genai::engine
