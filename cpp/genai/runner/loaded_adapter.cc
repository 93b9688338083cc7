#include "genai/runner/loaded_adapter.h"

#include "genai/base/error.h"

#include <algorithm>
#include <cstddef>

namespace genai::runner {
namespace {

constexpr std::size_t kMaxListed = 4;

std::string dims_text(const std::vector<std::int64_t>& dims) {
  std::string text;
  for (const std::int64_t dim : dims) text += (text.empty() ? "" : ", ") + (dim < 0 ? "?" : std::to_string(dim));
  return "[" + text + "]";
}

std::string listed(const std::vector<AdapterInput>& inputs) {
  std::string text;
  for (std::size_t i = 0; i < std::min(inputs.size(), kMaxListed); ++i) text += (i == 0 ? "" : ", ") + inputs[i].name;
  return inputs.size() > kMaxListed ? text + ", ..." : text;
}

std::string type_text(const std::optional<DType>& dtype) {
  return dtype ? std::string(name(*dtype)) : "of another type";
}

/// Compares the parameters of an adapter with the inputs of a graph.
class Check {
 public:
  Check(const ort::Session& session, const ModelSpec& spec, const std::string& path)
      : session_(session), spec_(spec), path_(path) {}

  void run(const std::vector<ort::AdapterParameter>& parameters) const {
    if (spec_.adapter_inputs.empty()) {
      throw Error(ErrorCode::kUnsupported,
                  path_ + ": the model takes no adapters: " + spec_.model_path +
                      " has no inputs for LoRA weights. Export it with them, or merge the adapter into the weights.");
    }
    if (parameters.empty()) refuse("has no parameters. Write it anew from the trained weights.");
    for (const ort::AdapterParameter& parameter : parameters) check_parameter(parameter);
    for (const AdapterInput& input : spec_.adapter_inputs) {
      if (input.has_default || has(parameters, input.name)) continue;
      refuse("lacks the parameter \"" + input.name +
             "\", for which the model has no value of its own. Use an adapter " + "that was made for this export.");
    }
  }

 private:
  static bool has(const std::vector<ort::AdapterParameter>& parameters, const std::string& name) {
    return std::ranges::find(parameters, name, &ort::AdapterParameter::name) != parameters.end();
  }

  [[noreturn]] void refuse(const std::string& why) const { throw Error(ErrorCode::kBadPackage, path_ + ": " + why); }

  void check_parameter(const ort::AdapterParameter& parameter) const {
    const bool is_known =
        std::ranges::find(spec_.adapter_inputs, parameter.name, &AdapterInput::name) != spec_.adapter_inputs.end();
    const ort::Port* port = is_known ? session_.find_overridable(parameter.name) : nullptr;
    if (is_known && port == nullptr) port = session_.find_input(parameter.name);
    if (port == nullptr) {
      refuse("has the parameter \"" + parameter.name + "\", which the model does not take from an adapter; it takes " +
             std::to_string(spec_.adapter_inputs.size()) + " (" + listed(spec_.adapter_inputs) +
             "). Use an adapter that was made for this export.");
    }
    if (!port->dtype || parameter.dtype != port->dtype) {
      refuse("the parameter \"" + parameter.name + "\" is " + type_text(parameter.dtype) + "; the model takes " +
             type_text(port->dtype) + ". Convert the adapter to that type.");
    }
    bool fits = parameter.dims.size() == port->dims.size();
    for (std::size_t axis = 0; fits && axis < port->dims.size(); ++axis) {
      fits = port->dims[axis] < 0 || port->dims[axis] == parameter.dims[axis];
    }
    if (!fits) {
      refuse("the parameter \"" + parameter.name + "\" has the shape " + dims_text(parameter.dims) +
             "; the model takes " + dims_text(port->dims) + " (? is any size). Use an adapter that was made for this " +
             "export; a transposed one must be turned when it is written.");
    }
  }

  const ort::Session& session_;
  const ModelSpec& spec_;
  const std::string& path_;
};

}  // namespace

LoadedAdapter::LoadedAdapter(const ort::Session& session, const ModelSpec& spec, const AdapterFile& file,
                             std::uint64_t number)
    : path_(file.path),
      number_(number),
      weights_(session.ort_library(), file.bytes, file.path),
      run_options_(session.ort_library()) {
  Check(session, spec, path_).run(weights_.parameters());
  run_options_.add(weights_);
}

}  // namespace genai::runner
