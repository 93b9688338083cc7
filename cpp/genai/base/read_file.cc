#include "genai/base/read_file.h"

#include <fstream>
#include <sstream>

namespace genai {

std::optional<std::string> read_file(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace genai
