#pragma once

#include "genai/base/dtype.h"
#include "genai/ort/library.h"
#include "genai/ort/provider.h"
#include "genai/ort/value.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ort_abi {
struct RunOptions;
struct Session;
}  // namespace ort_abi

namespace genai::ort {

class LoraAdapter;
class OpDomain;

struct SessionOptions {
  int intra_op_threads = 1;         ///< threads of one Run, the caller's included, >= 1
  bool spinning = true;             ///< worker threads poll while a Run is under way, never between Runs: faster
  std::vector<Provider> providers;  ///< best first; what none of them takes runs on the CPU
  std::vector<std::pair<std::string, std::string>> config;  ///< ONNX Runtime's session config entries
  std::vector<const OpDomain*> domains;  ///< operators of our own; of the same library, outlive the session
};

/// An input or output of a graph.
struct Port {
  std::string name;
  std::optional<DType> dtype;      ///< nullopt: not a tensor, or of a type that no interface of ours carries
  std::vector<std::int64_t> dims;  ///< -1 where symbolic
};

/// Lets one Run be stopped from another thread. Thread-safe.
class RunOptions {
 public:
  explicit RunOptions(const Library& library);
  ~RunOptions();
  RunOptions(const RunOptions&) = delete;
  RunOptions& operator=(const RunOptions&) = delete;

  /// Makes the Run that uses this object, now or next, fail soon with kAborted, until clear_terminate().
  void terminate();
  void clear_terminate();

  /// The Runs that use this object from now on have the adapter; it cannot be taken out again. Requires: no Run uses
  /// the object; the adapter outlives it. Throws kBackend.
  void add(const LoraAdapter& adapter);

  /// Whether this ONNX Runtime (1.25 and later) can record the operators of single Runs.
  bool can_profile() const;
  /// From the next Run on, each writes what its operators took to a file `<prefix>_<date>.json`. Requires:
  /// can_profile(), and no Run uses the object.
  void profile_to(const std::string& prefix);
  void stop_profiling();
  ort_abi::RunOptions* handle() const { return handle_; }

 private:
  const Library& ort_library_;
  ort_abi::RunOptions* handle_ = nullptr;
};

/// A loaded model. The graph is optimised fully, memory patterns are off (shapes change with each step), and memory
/// comes from the library's HostAllocator unless the config says session.use_env_allocators = 0. const methods are safe
/// from any thread.
class Session {
 public:
  /// Loads the model file. Throws kNotFound (no file), kBadPackage (file or external data broken, missing or a Git LFS
  /// pointer), kUnsupported (unknown operator), kBackend. Cost: reads all weights.
  Session(const Library& library, const std::string& path, const SessionOptions& options);

  /// A serialized model in memory.
  struct Bytes {
    std::string_view model;
    std::string external_folder;  ///< folder of the external data files; empty = there are none
    std::string path;             ///< file that errors name
  };
  /// Loads a model from memory, which may be freed afterwards. Throws as above.
  Session(const Library& library, const Bytes& bytes, const SessionOptions& options);

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Library& ort_library() const { return ort_library_; }
  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  const Port* find_input(std::string_view name) const;
  /// An input with a value of its own, which a Run takes when it is given no other; null = there is none of that name.
  const Port* find_overridable(std::string_view name) const;
  const Port* find_output(std::string_view name) const;
  ort_abi::Session* handle() const { return handle_.get(); }

 private:
  struct Release {
    const Library* library;
    void operator()(ort_abi::Session* session) const;
  };
  void read_ports();

  const Library& ort_library_;
  std::unique_ptr<ort_abi::Session, Release> handle_;
  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
  std::vector<Port> overridable_;
};

/// The arguments of Run: names, and values that are replaced one by one between runs. One thread. The session must
/// outlive it.
///
///     RunFrame frame(session, {"x"}, {"y"});
///     frame.set_input(0, Value::view(...));
///     frame.run(run_options);
///     const Value y = frame.take_output(0);
class RunFrame {
 public:
  /// Throws kBadPackage when the graph lacks one of the names.
  RunFrame(const Session& session, std::vector<std::string> inputs, std::vector<std::string> outputs);
  RunFrame(const RunFrame&) = delete;
  RunFrame& operator=(const RunFrame&) = delete;

  std::size_t num_inputs() const { return inputs_.size(); }
  std::size_t num_outputs() const { return outputs_.size(); }

  void set_input(std::size_t index, Value value) {
    inputs_[index] = std::move(value);
    input_handles_[index] = inputs_[index].handle();
  }
  /// As set_input(), but the value stays the caller's and must live until the next run has ended.
  void lend_input(std::size_t index, const Value& value) {
    inputs_[index] = Value();
    input_handles_[index] = value.handle();
  }
  /// Where to write an output; an empty value lets ONNX Runtime allocate it.
  void set_output(std::size_t index, Value value) { outputs_[index] = std::move(value); }
  const Value& output(std::size_t index) const { return outputs_[index]; }
  /// Hands the output over; the next run allocates a new one.
  Value take_output(std::size_t index) { return std::move(outputs_[index]); }

  /// Runs the model. Requires: every input is set. Throws kAborted, kResourceExhausted, kBackend. When an output has
  /// a given value, its dims must be those that the model computes.
  void run(const RunOptions& options);

 private:
  const Session& session_;
  std::vector<std::string> input_names_;
  std::vector<std::string> output_names_;
  std::vector<const char*> input_name_pointers_;   ///< into input_names_
  std::vector<const char*> output_name_pointers_;  ///< into output_names_
  std::vector<Value> inputs_;                      ///< empty where lent
  std::vector<Value> outputs_;
  std::vector<ort_abi::Value*> input_handles_;   ///< of inputs_ or of what is lent
  std::vector<ort_abi::Value*> output_handles_;  ///< of outputs_, filled by run()
};

}  // namespace genai::ort
