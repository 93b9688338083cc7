#include "python_llguidance.h"

#include "genai/base/error.h"

#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace genai::bindings {
namespace {

/// Calls Python, with the GIL. What it raises becomes an error, but for what is meant to end the program.
template <typename Body>
auto call(ErrorCode code, const std::string& what, const Body& body) {
  const py::gil_scoped_acquire gil;
  try {
    return body();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    throw Error(code, what + ": " + error.what());
  } catch (const py::cast_error& error) {
    throw Error(code, what + ": " + error.what());
  }
}

template <typename Body>
auto call_matcher(const Body& body) {
  return call(ErrorCode::kInternal, "llguidance's Python interface failed", body);
}

class PythonMatcher final : public grammar::LlgMatcher {
 public:
  /// Requires the GIL.
  explicit PythonMatcher(py::object matcher) : matcher_(std::move(matcher)) {}

  std::optional<std::string> error() override {
    return call_matcher([&] { return matcher_.get().attr("error")().cast<std::optional<std::string>>(); });
  }

  bool compute_mask(std::span<std::uint32_t> words) override {
    return call_matcher([&] {
      const auto address = reinterpret_cast<std::uintptr_t>(words.data());
      return matcher_.get().attr("compute_mask")(address, words.size_bytes()).cast<bool>();
    });
  }

  bool consume(std::span<const TokenId> tokens) override {
    return call_matcher([&] {
      py::list ids;
      for (const TokenId token : tokens) ids.append(token);
      return matcher_.get().attr("consume")(ids).cast<bool>();
    });
  }

  bool rollback(std::size_t count) override {
    return call_matcher([&] { return matcher_.get().attr("rollback")(count).cast<bool>(); });
  }

  std::vector<TokenId> forced_tokens() override {
    return call_matcher([&] { return matcher_.get().attr("forced_tokens")().cast<std::vector<TokenId>>(); });
  }

  bool is_accepting() override { return is("is_accepting"); }
  bool is_stopped() override { return is("is_stopped"); }

  std::unique_ptr<grammar::LlgMatcher> clone() const override {
    return call_matcher([&] { return std::make_unique<PythonMatcher>(matcher_.get().attr("clone")()); });
  }

 private:
  bool is(const char* method) {
    return call_matcher([&] { return matcher_.get().attr(method)().cast<bool>(); });
  }

  SharedObject matcher_;
};

class PythonTokenizer final : public grammar::LlgTokenizer {
 public:
  /// Requires the GIL.
  explicit PythonTokenizer(py::object tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::unique_ptr<grammar::LlgMatcher> new_matcher(grammar::Kind kind, const std::string& source,
                                                   std::size_t max_items_in_row) const override {
    return call_matcher([&] {
      return std::make_unique<PythonMatcher>(
          tokenizer_.get().attr("new_matcher")(grammar::name_of(kind), source, max_items_in_row));
    });
  }

 private:
  SharedObject tokenizer_;
};

}  // namespace

std::shared_ptr<const grammar::LlgTokenizer> PythonLlguidance::make_tokenizer(grammar::LlgVocabulary vocabulary) const {
  return call(ErrorCode::kBadPackage, "the vocabulary cannot be used for grammars", [&] {
    py::list tokens;
    for (const std::string& token : vocabulary.tokens) tokens.append(py::bytes(token));
    py::object tokenize = py::none();
    if (vocabulary.tokenize) tokenize = py::cpp_function(std::move(vocabulary.tokenize));
    return std::make_shared<const PythonTokenizer>(
        llguidance_.get().attr("make_tokenizer")(tokens, vocabulary.eos_ids, tokenize));
  });
}

}  // namespace genai::bindings
