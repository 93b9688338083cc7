#pragma once

#include "genai/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace genai {

/// The text of each token, so that the core can make text and find stop strings without Python. Immutable; const
/// methods are safe from any thread. Filled by `onnx_genai.tokenizer` from tokenizer.json.
struct TokenTable {
  enum class Kind : std::uint8_t {
    kText,     ///< `bytes` are appended as they are (may be part of a UTF-8 character in byte-level vocabularies)
    kByte,     ///< a byte-fallback token: `bytes` is that one byte
    kSpecial,  ///< left out when special tokens are skipped, else appended like kText
  };
  enum class Decoding {
    kByteLevel,     ///< all bytes are joined, then decoded as UTF-8 with U+FFFD for each maximal invalid part
    kByteFallback,  ///< runs of kByte tokens are decoded together; an invalid run gives one U+FFFD a token
  };

  Decoding decoding = Decoding::kByteLevel;
  bool strip_first_space = false;  ///< the first character of the whole text is dropped when it is a space
  std::vector<std::string> bytes;  ///< one a token id
  std::vector<Kind> kinds;         ///< same length
  /// Text of tokens that read differently when no text stands before them (WordPiece's "##x"); taken as it is, without
  /// the first-space rule.
  std::unordered_map<TokenId, std::string> first;

  std::size_t size() const { return bytes.size(); }
};

}  // namespace genai
