#include "genai/base/error.h"
#include "genai/grammar/begun_grammar.h"
#include "genai/grammar/closing.h"
#include "genai/grammar/compiler.h"
#include "genai/grammar/library.h"

#include "data.h"
#include "python_llguidance.h"
#include "shared_object.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace genai::bindings {
namespace {

grammar::Kind kind_of(const std::string& name) {
  if (name == "json_schema") return grammar::Kind::kJsonSchema;
  if (name == "regex") return grammar::Kind::kRegex;
  if (name == "lark") return grammar::Kind::kLark;
  throw Error(ErrorCode::kInvalidArgument,
              "the kind of a grammar is \"" + name + "\"; allowed: json_schema, regex, lark");
}

/// A compiled grammar as Python holds it.
struct GrammarHandle {
  std::shared_ptr<const TokenGrammar> grammar;
  std::int64_t vocab_size = 0;
};

/// A matcher of its own, to walk through a grammar without a model.
class MatcherHandle {
 public:
  explicit MatcherHandle(const GrammarHandle& grammar) : grammar_(grammar), matcher_(grammar.grammar->make_matcher()) {}

  py::array_t<std::uint32_t> bitmask() {
    py::array_t<std::uint32_t> words(static_cast<py::ssize_t>(bitmask_words(grammar_.vocab_size)));
    const std::span<std::uint32_t> view(words.mutable_data(), static_cast<std::size_t>(words.size()));
    const py::gil_scoped_release no_gil;
    matcher_->fill_bitmask(view);
    return words;
  }
  void accept(const std::vector<TokenId>& tokens) { matcher_->accept(tokens); }
  void rollback(std::int64_t count) { matcher_->rollback(count); }
  std::vector<TokenId> forced_tokens() { return matcher_->forced_tokens(); }
  bool can_end() { return matcher_->can_end(); }
  bool must_end() { return matcher_->must_end(); }
  const TokenMatcher& matcher() const { return *matcher_; }

 private:
  GrammarHandle grammar_;
  std::unique_ptr<TokenMatcher> matcher_;
};

/// A Python function that is called from any thread, and freed with the GIL.
std::function<std::vector<TokenId>(const std::string&)> tokenize_function(const py::object& function) {
  if (function.is_none()) return {};
  const auto held = std::make_shared<const SharedObject>(function);
  return [held](const std::string& text) {
    const py::gil_scoped_acquire gil;
    return held->get()(text).cast<std::vector<TokenId>>();
  };
}

/// `llguidance`: the path of its extension module, or an object that calls its Python interface.
std::unique_ptr<grammar::Compiler> make_compiler(const py::object& llguidance, const grammar::Vocabulary& vocabulary,
                                                 grammar::CacheLimits limits) {
  if (py::isinstance<py::str>(llguidance)) {
    const auto path = llguidance.cast<std::string>();
    const py::gil_scoped_release no_gil;
    return std::make_unique<grammar::Compiler>(grammar::Library::load(path), vocabulary, limits);
  }
  const PythonLlguidance python(llguidance);
  const py::gil_scoped_release no_gil;
  return std::make_unique<grammar::Compiler>(python, vocabulary, limits);
}

}  // namespace

std::shared_ptr<const TokenGrammar> token_grammar(const py::object& object) {
  return object.is_none() ? nullptr : object.cast<const GrammarHandle&>().grammar;
}

void bind_grammar(py::module_& module) {
  module.def(
      "load_llguidance", [](const std::string& path) { grammar::Library::load(path); }, py::arg("path"),
      py::call_guard<py::gil_scoped_release>());
  py::class_<GrammarHandle>(module, "Grammar")
      .def("matcher", [](const GrammarHandle& self) { return std::make_unique<MatcherHandle>(self); })
      .def(
          "begun",
          [](const GrammarHandle& self, std::vector<TokenId> written) {
            const py::gil_scoped_release no_gil;
            return GrammarHandle{std::make_shared<const grammar::BegunGrammar>(self.grammar, std::move(written)),
                                 self.vocab_size};
          },
          py::arg("written"))
      .def_readonly("vocab_size", &GrammarHandle::vocab_size);
  py::class_<MatcherHandle>(module, "Matcher")
      .def("bitmask", &MatcherHandle::bitmask)
      .def("accept", &MatcherHandle::accept, py::arg("tokens"))
      .def("rollback", &MatcherHandle::rollback, py::arg("count"))
      .def("forced_tokens", &MatcherHandle::forced_tokens)
      .def_property_readonly("can_end", &MatcherHandle::can_end)
      .def_property_readonly("must_end", &MatcherHandle::must_end);
  py::class_<grammar::Closing>(module, "Closing")
      .def(py::init([](const std::shared_ptr<TokenTable>& tokens) {
             return grammar::Closing(*tokens, std::ssize(tokens->bytes));
           }),
           py::kw_only(), py::arg("tokens"))
      .def(
          "find_end",
          [](const grammar::Closing& self, const MatcherHandle& matcher, std::int64_t max_tokens) {
            const py::gil_scoped_release no_gil;
            return self.find_end(matcher.matcher(), {.max_tokens = max_tokens});
          },
          py::arg("matcher"), py::arg("max_tokens"));
  py::class_<grammar::Compiler>(module, "GrammarCompiler")
      .def(py::init([](const py::object& llguidance, const std::shared_ptr<TokenTable>& tokens,
                       std::vector<TokenId> eos_ids, const py::object& tokenize, std::size_t max_grammars) {
             const grammar::Vocabulary vocabulary{
                 .table = tokens, .tokenize = tokenize_function(tokenize), .eos_ids = std::move(eos_ids)};
             return make_compiler(llguidance, vocabulary, {.max_grammars = max_grammars});
           }),
           py::kw_only(), py::arg("llguidance"), py::arg("tokens"), py::arg("eos_ids"), py::arg("tokenize"),
           py::arg("max_grammars"))
      .def(
          "compile",
          [](grammar::Compiler& self, const std::string& kind, const std::string& source) {
            const grammar::Kind parsed = kind_of(kind);
            std::shared_ptr<const TokenGrammar> compiled;
            {
              const py::gil_scoped_release no_gil;
              compiled = self.compile(parsed, source);
            }
            return GrammarHandle{std::move(compiled), self.vocab_size()};
          },
          py::arg("kind"), py::arg("source"))
      .def_property_readonly("num_cached", &grammar::Compiler::num_cached);
}

}  // namespace genai::bindings
