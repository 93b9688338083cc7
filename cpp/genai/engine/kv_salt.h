#pragma once

#include "genai/core/adapter.h"

#include <span>
#include <string>
#include <string_view>

namespace genai::engine {

/// What the KV of a sequence depends on besides its tokens: the salt of its request, which is UTF-8, and the adapters
/// that it runs with from where on. Different ones have different texts.
inline std::string kv_salt(std::string_view cache_salt, std::span<const AdapterSpan> adapters) {
  std::string salt(cache_salt);
  for (const AdapterSpan& span : adapters) {
    salt += '\xff';  // is in no UTF-8 text
    salt += std::to_string(span.first) + ":" + std::to_string(span.adapter ? span.adapter->number() : 0);
  }
  return salt;
}

}  // namespace genai::engine
