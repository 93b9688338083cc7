#pragma once

#include "genai/grammar/llguidance.h"

#include "shared_object.h"

#include <pybind11/pybind11.h>

#include <memory>

namespace genai::bindings {

/// llguidance by a Python object, `engine.python_llguidance.PythonLlguidance`. Each call takes the GIL, and none is
/// made with a lock of ours held. Thread-safe.
class PythonLlguidance final : public grammar::Llguidance {
 public:
  /// Requires the GIL.
  explicit PythonLlguidance(pybind11::object llguidance) : llguidance_(std::move(llguidance)) {}

  std::shared_ptr<const grammar::LlgTokenizer> make_tokenizer(grammar::LlgVocabulary vocabulary) const override;

 private:
  SharedObject llguidance_;
};

}  // namespace genai::bindings
