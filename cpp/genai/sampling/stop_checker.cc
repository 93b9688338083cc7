#include "genai/sampling/stop_checker.h"

#include "genai/base/error.h"

#include <algorithm>
#include <utility>

namespace genai::sampling {

StopChecker::StopChecker(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    if (stops_[i].empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "stop[" + std::to_string(i) + "] is \"\"; allowed: a string that is not empty");
    }
    max_held_ = std::max(max_held_, stops_[i].size() - 1);
  }
}

StopChecker::Output StopChecker::append(std::string_view piece) {
  check(!has_matched_, "text after a stop string matched");
  const std::size_t first_new = held_.size();
  held_ += piece;
  Output output;
  if (const std::optional<Match> match = find_first(first_new)) {
    has_matched_ = true;
    output.text = held_.substr(0, include_stop_ ? match->end : match->start);
    output.matched = match->stop;
    held_.clear();
    return output;
  }
  const std::size_t certain = held_.size() - held_size();
  output.text = held_.substr(0, certain);
  held_.erase(0, certain);
  return output;
}

std::string StopChecker::flush() {
  return std::exchange(held_, {});
}

/// The match that ends first at or after byte `first_new` of held_. All that could match earlier was looked at before.
std::optional<StopChecker::Match> StopChecker::find_first(std::size_t first_new) const {
  const std::string_view text = held_;
  for (std::size_t end = first_new + 1; end <= text.size(); ++end) {
    std::optional<Match> longest;
    for (std::size_t i = 0; i < stops_.size(); ++i) {
      const std::string& stop = stops_[i];
      if (stop.size() > end || stop.back() != text[end - 1]) continue;
      const std::size_t start = end - stop.size();
      if (longest && start >= longest->start) continue;
      if (text.substr(start, stop.size()) == stop) longest = Match{start, end, static_cast<int>(i)};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

/// Bytes at the end of held_ that are the longest beginning of any stop string. A cut before them never splits a
/// character, because stop strings are UTF-8.
std::size_t StopChecker::held_size() const {
  const std::string_view text = held_;
  for (std::size_t size = std::min(max_held_, text.size()); size > 0; --size) {
    const std::string_view tail = text.substr(text.size() - size);
    const auto begins_with_tail = [&](const std::string& stop) {
      return stop.size() > size && std::string_view(stop).substr(0, size) == tail;
    };
    if (std::ranges::any_of(stops_, begins_with_tail)) return size;
  }
  return 0;
}

}  // namespace genai::sampling
