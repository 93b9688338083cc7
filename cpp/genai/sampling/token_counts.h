#pragma once

#include "genai/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace genai::sampling {

/// How often each token of a sequence occurs, kept up to date as the sequence grows. Memory: O(tokens). One thread.
class TokenCounts {
 public:
  struct Entry {
    TokenId token = 0;
    std::uint32_t total = 0;      ///< in prompt and output
    std::uint32_t generated = 0;  ///< in the output alone
  };

  /// Takes over the sequence as it is now. Ids that were rewound since the last call are uncounted.
  /// Requires: the prompt is the same in every call. Cost: O(new and rewound ids), plus one comparison of the old ones.
  void update(std::span<const TokenId> tokens, std::size_t num_prompt_tokens);

  /// One entry a distinct token that was ever seen, in no useful order; counts are 0 for tokens that were rewound.
  std::span<const Entry> entries() const { return entries_; }

 private:
  Entry& entry_of(TokenId token);
  void grow();

  std::vector<TokenId> tokens_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t>
      slots_;  ///< open addressing: 0 or index of the entry + 1; a power of two, at most half full
};

}  // namespace genai::sampling
