#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace genai {

/// U+FFFD, which stands for bytes that are not UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// True if `bytes` is UTF-8: shortest forms only, no surrogates, nothing above U+10FFFF.
bool is_valid_utf8(std::string_view bytes);

/// `bytes` as UTF-8, with U+FFFD for each maximal part that is not (as Rust's `String::from_utf8_lossy`).
/// Source: The Unicode Standard, section 3.9, "U+FFFD substitution of maximal subparts".
std::string decode_utf8_lossy(std::string_view bytes);

/// Bytes at the end (0..3) that begin a character and could be completed by more bytes. Cutting before them never
/// changes the lossy decode: `lossy(head) + lossy(tail + more) == lossy(bytes + more)`.
std::size_t incomplete_utf8_tail(std::string_view bytes);

}  // namespace genai
