#include "genai/base/utf8.h"

#include <algorithm>
#include <cstdint>

namespace genai {
namespace {

/// The longest start of `bytes` that starts a well-formed character.
struct Part {
  std::size_t size_bytes = 1;  ///< >= 1: a byte that can start nothing is a part of its own
  bool is_complete = false;    ///< the part is a whole character
  bool can_grow = false;       ///< `bytes` ended before the character did
};

/// Requires: `bytes` is not empty. Table 3-7 of the Unicode Standard: only the second byte has special ranges.
Part first_part(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) return {.size_bytes = 1, .is_complete = true};
  if (lead < 0xC2 || lead > 0xF4) return {};

  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;   // shorter forms exist
  if (lead == 0xED) high = 0x9F;  // surrogates
  if (lead == 0xF0) low = 0x90;   // shorter forms exist
  if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
  std::size_t size = 1;
  for (; size < length; ++size) {
    if (size == bytes.size()) return {.size_bytes = size, .can_grow = true};
    if (at(size) < low || at(size) > high) return {.size_bytes = size};
    low = 0x80;
    high = 0xBF;
  }
  return {.size_bytes = length, .is_complete = true};
}

}  // namespace

bool is_valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Part part = first_part(bytes);
    if (!part.is_complete) return false;
    bytes.remove_prefix(part.size_bytes);
  }
  return true;
}

std::string decode_utf8_lossy(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Part part = first_part(bytes);
    text += part.is_complete ? bytes.substr(0, part.size_bytes) : kReplacementCharacter;
    bytes.remove_prefix(part.size_bytes);
  }
  return text;
}

std::size_t incomplete_utf8_tail(std::string_view bytes) {
  // A part that can grow starts with a lead byte, and a lead byte starts a part wherever it stands.
  for (std::size_t size = std::min<std::size_t>(3, bytes.size()); size > 0; --size) {
    const std::string_view tail = bytes.substr(bytes.size() - size);
    const Part part = first_part(tail);
    if (part.can_grow) return size;
  }
  return 0;
}

}  // namespace genai
