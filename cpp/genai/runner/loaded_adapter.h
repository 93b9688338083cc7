#pragma once

#include "genai/core/adapter.h"
#include "genai/core/model_spec.h"
#include "genai/ort/lora_adapter.h"
#include "genai/ort/session.h"

#include <cstdint>
#include <string>

namespace genai::runner {

/// An adapter of a loaded model, with the options of the Runs that have it. The model's thread runs with it; any thread
/// may make and free it.
class LoadedAdapter : public Adapter {
 public:
  /// Compares the file with the graph. All are loans for the constructor. Throws kBadPackage (no adapter, or one of
  /// another model), kUnsupported (the graph takes none), kBackend.
  LoadedAdapter(const ort::Session& session, const ModelSpec& spec, const AdapterFile& file, std::uint64_t number);

  std::uint64_t number() const override { return number_; }
  const std::string& path() const { return path_; }
  /// Not const: a Run may be stopped and recorded by them.
  ort::RunOptions& run_options() const { return run_options_; }

 private:
  std::string path_;
  std::uint64_t number_;
  ort::LoraAdapter weights_;
  mutable ort::RunOptions run_options_;  ///< has weights_
};

}  // namespace genai::runner
