#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace genai {

/// A LoRA adapter that a decoder has loaded. Shared by the requests that run with it, and freed with the last of them;
/// never changed.
class Adapter {
 public:
  virtual ~Adapter() = default;
  /// Each load of a decoder has another one, so that KV of one content is never taken for that of another.
  virtual std::uint64_t number() const = 0;
};

/// A file in ONNX Runtime's adapter format. Both are loans.
struct AdapterFile {
  std::string_view bytes;   ///< the whole file
  const std::string& path;  ///< names it in errors
};

/// The tokens of a sequence from position `first` on run with `adapter`, up to the next span.
struct AdapterSpan {
  std::int64_t first = 0;                  ///< >= 0
  std::shared_ptr<const Adapter> adapter;  ///< null = none; shared with other requests and with who loaded it
};

/// What the token at a position runs with; null = no adapter. Requires: `spans` are in the order of `first`.
inline const Adapter* adapter_at(std::span<const AdapterSpan> spans, std::int64_t position) {
  const Adapter* found = nullptr;
  for (const AdapterSpan& span : spans) {
    if (span.first > position) break;
    found = span.adapter.get();
  }
  return found;
}

}  // namespace genai
