#pragma once

#include <optional>
#include <string>

namespace genai {

/// Whole content of a file; nullopt when it cannot be opened. Files of /proc and /sys included. Thread-safe.
std::optional<std::string> read_file(const std::string& path);

}  // namespace genai
