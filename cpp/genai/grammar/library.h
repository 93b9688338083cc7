#pragma once

#include "genai/grammar/llguidance.h"

#include <memory>
#include <string>

namespace llg_abi {
struct Functions;
}  // namespace llg_abi

namespace genai::grammar {

/// llguidance by the C functions of a loaded library. One object for each file, kept until the process ends.
/// Thread-safe.
class Library final : public Llguidance {
 public:
  /// Opens the extension module of the llguidance wheel at `path` (absolute). The process must be a Python process,
  /// whose symbols the module needs. Throws kInvalidArgument (path not absolute), kNotFound (no such file),
  /// kUnsupported (it does not export the C interface, or not the expected one).
  static const Library& load(const std::string& path);

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  std::shared_ptr<const LlgTokenizer> make_tokenizer(LlgVocabulary vocabulary) const override;

 private:
  explicit Library(const std::string& path);
  const llg_abi::Functions* functions_ = nullptr;  ///< kept until the process ends
};

}  // namespace genai::grammar
