#pragma once

#include "genai/ort/adapter_file.h"
#include "genai/ort/library.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ort_abi {
struct LoraAdapter;
}  // namespace ort_abi

namespace genai::ort {

/// The tensors of an adapter file, which stand in for inputs of a graph in the Runs whose RunOptions have it. They are
/// copied. const methods are safe from any thread.
class LoraAdapter {
 public:
  /// `bytes`: the whole file; `path` names it in errors. Throws kBadPackage: it is no adapter, or a damaged one.
  LoraAdapter(const Library& library, std::string_view bytes, const std::string& path);
  LoraAdapter(const LoraAdapter&) = delete;
  LoraAdapter& operator=(const LoraAdapter&) = delete;

  const std::vector<AdapterParameter>& parameters() const { return parameters_; }
  ort_abi::LoraAdapter* handle() const { return handle_.get(); }

 private:
  struct Release {
    const Library* library;
    void operator()(ort_abi::LoraAdapter* adapter) const;
  };

  std::unique_ptr<ort_abi::LoraAdapter, Release> handle_;
  std::vector<AdapterParameter> parameters_;
};

}  // namespace genai::ort
