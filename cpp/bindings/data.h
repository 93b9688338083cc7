#pragma once

#include "genai/core/constraint.h"

#include <pybind11/pybind11.h>

#include <memory>

namespace genai::bindings {

/// Plain data: ModelSpec and its parts, SamplingParams, TokenTable, Event and its parts.
void bind_data(pybind11::module_& module);

/// Engine and its options.
void bind_engine(pybind11::module_& module);

/// Encoders of texts and what describes them.
void bind_encoder(pybind11::module_& module);

/// Compiled grammars.
void bind_grammar(pybind11::module_& module);
/// The grammar behind a Python object of the class Grammar; null for None.
std::shared_ptr<const TokenGrammar> token_grammar(const pybind11::object& object);

/// Proposers of draft tokens.
void bind_proposers(pybind11::module_& module);

/// Recording what an engine does. After bind_engine().
void bind_profile(pybind11::module_& module);

/// ONNX Runtime library, cores and memory of this machine.
void bind_system(pybind11::module_& module);

}  // namespace genai::bindings
