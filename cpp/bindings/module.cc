#include "data.h"
#include "errors.h"

#include <pybind11/pybind11.h>

PYBIND11_MODULE(_core, module) {
  module.doc() = "Compiled core of onnx_genai. Private: use the classes of the package.";
  genai::bindings::register_error_translation();
  genai::bindings::bind_data(module);
  genai::bindings::bind_grammar(module);
  genai::bindings::bind_engine(module);
  genai::bindings::bind_encoder(module);
  genai::bindings::bind_proposers(module);
  genai::bindings::bind_profile(module);
  genai::bindings::bind_system(module);
}
