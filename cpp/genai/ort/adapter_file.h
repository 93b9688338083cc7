#pragma once

#include "genai/base/dtype.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace genai::ort {

/// A tensor of an adapter file.
struct AdapterParameter {
  std::string name;            ///< of the graph input that it stands in for
  std::optional<DType> dtype;  ///< nullopt: of a type that no interface of ours carries
  std::vector<std::int64_t> dims;
};

/// What the tensors of an adapter file are; ONNX Runtime loads such files, and does not tell. `bytes`: the whole file;
/// `path` names it in errors. Reads nothing outside of `bytes`, whatever they are. Throws kBadPackage when it is no
/// adapter file, or damaged.
///
/// The file is a FlatBuffer with the identifier "TORT":
///
///     Adapter    0 format version   1 adapter version   2 model version   3 parameters
///     Parameter  0 name             1 dims (int64)      2 element type    3 raw data
///
/// Source: https://flatbuffers.dev/internals, and the schema of ONNX Runtime's adapter format.
std::vector<AdapterParameter> read_adapter_parameters(std::string_view bytes, const std::string& path);

}  // namespace genai::ort
