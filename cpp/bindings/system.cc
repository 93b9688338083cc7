#include "genai/base/cpu.h"
#include "genai/base/memory.h"
#include "genai/engine/runtime.h"
#include "genai/kernels/isa.h"

#include "data.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

namespace py = pybind11;

namespace genai::bindings {

void bind_system(py::module_& module) {
  module.def(
      "runtime_info",
      [](const std::string& library) {
        engine::RuntimeInfo info;
        {
          const py::gil_scoped_release no_gil;
          info = engine::runtime_info(library);
        }
        return py::make_tuple(info.version, info.api_version, info.providers);
      },
      py::arg("library"));
  module.def(
      "check_provider",
      [](const std::string& library, const runner::ProviderOption& provider) {
        const py::gil_scoped_release no_gil;
        return engine::check_provider(library, provider);
      },
      py::arg("library"), py::arg("provider"));
  module.def("kernel_isas", [] {
    std::vector<std::string> names;
    for (const kernels::Isa isa : kernels::supported_isas()) names.emplace_back(kernels::isa_name(isa));
    return py::make_tuple(std::string(kernels::isa_name(kernels::chosen_isa())), names);
  });
  module.def("usable_physical_cores", [] { return usable_physical_cores(); });
  module.def("available_host_memory_bytes", &available_host_memory_bytes);
  module.def("resident_set_bytes", &resident_set_bytes);
}

}  // namespace genai::bindings
