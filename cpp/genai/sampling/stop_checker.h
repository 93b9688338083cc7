#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace genai::sampling {

/// Finds stop strings in a text that arrives in pieces, and holds back any tail that could become one, so that no part
/// of a stop string ever leaks. The stop string that is complete first wins; of several that end at one place, the one
/// that starts first, which is the longest; of equal ones, the first listed. Hence the outcome depends on the text
/// alone, never on how it is cut into pieces. One thread.
class StopChecker {
 public:
  struct Output {
    std::string text;            ///< certain text; ends before the match (after it with include_stop)
    std::optional<int> matched;  ///< index of the stop string that matched; nothing follows it
  };

  /// Throws InvalidArgument for an empty stop string.
  StopChecker(std::vector<std::string> stops, bool include_stop);

  /// Adds a piece of UTF-8 text. Requires: no match so far. Holds back at most the longest stop's length - 1 bytes.
  /// Cost: O(bytes of the piece x number of stops), plus a comparison where last bytes agree.
  Output append(std::string_view piece);

  /// The held-back tail: certain now, because the text ended without a match.
  std::string flush();

 private:
  struct Match {
    std::size_t start;
    std::size_t end;
    int stop;
  };
  std::optional<Match> find_first(std::size_t first_new) const;
  std::size_t held_size() const;

  std::vector<std::string> stops_;
  bool include_stop_;
  std::size_t max_held_ = 0;  ///< longest stop's length - 1
  bool has_matched_ = false;
  std::string held_;
};

}  // namespace genai::sampling
