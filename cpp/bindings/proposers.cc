#include "genai/spec/ngram_proposer.h"

#include "data.h"

#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <vector>

namespace py = pybind11;

namespace genai::bindings {

void bind_proposers(py::module_& module) {
  py::native_enum<spec::DraftStyle>(module, "DraftStyle", "enum.Enum")
      .value("copied", spec::DraftStyle::kCopied)
      .value("chained", spec::DraftStyle::kChained)
      .finalize();
  py::class_<spec::NgramProposer>(module, "NgramProposer")
      .def(py::init<std::size_t>(), py::arg("order"))
      .def(
          "extend", [](spec::NgramProposer& self, const std::vector<TokenId>& tokens) { self.extend(tokens); },
          py::arg("tokens"))
      .def("truncate", &spec::NgramProposer::truncate, py::arg("size"))
      .def("propose", &spec::NgramProposer::propose, py::arg("limit"), py::arg("style"))
      .def("__len__", &spec::NgramProposer::size);
}

}  // namespace genai::bindings
