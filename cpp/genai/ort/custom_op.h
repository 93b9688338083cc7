#pragma once

#include "genai/base/dims.h"
#include "genai/base/dtype.h"
#include "genai/base/error.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ort_abi {
class Api;
struct CustomOpDomain;
struct KernelContext;
struct KernelInfo;
struct SessionOptions;
struct Status;
}  // namespace ort_abi

namespace genai::ort {

/// An input or output of a running operator: a loan until compute() returns.
struct KernelTensor {
  std::byte* data = nullptr;  ///< nullptr: the node leaves this optional input out
  Dims dims;

  bool present() const { return data != nullptr; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

/// Attributes and constants of a node, while its kernel is made.
class KernelInfo {
 public:
  KernelInfo(const ort_abi::Api& api, const ort_abi::KernelInfo* handle) : api_(api), handle_(handle) {}

  /// The attribute, or `fallback` when the node does not have it or has it with another type.
  std::int64_t integer(const char* name, std::int64_t fallback) const;
  float number(const char* name, float fallback) const;
  /// The data of an input that is a constant of the graph; it lives as long as the session. Not present when the node
  /// leaves the input out or computes it. Throws kBackend.
  KernelTensor constant(std::size_t index) const;
  /// Name of the node, for errors.
  std::string node_name() const;

 private:
  const ort_abi::Api& api_;
  const ort_abi::KernelInfo* handle_;
};

/// Inputs, outputs and threads of one call of an operator. Not thread-safe, except that the body of parallel_for() may
/// use the tensors.
class KernelContext {
 public:
  KernelContext(const ort_abi::Api& api, ort_abi::KernelContext* handle) : api_(api), handle_(handle) {}

  /// Requires: the operator declares the input. Throws kBackend. About 0.1 us.
  KernelTensor input(std::size_t index) const;
  /// Makes an output of these dims. Throws kBackend.
  KernelTensor output(std::size_t index, const Dims& dims) const;

  /// Calls body(index) for 0 <= index < count on the session's threads, the caller's included, and returns when all
  /// are done. The session cuts the indices into one run for each of its threads. When bodies throw, one of their
  /// errors is thrown here. Throws kBackend.
  template <typename Body>
  void parallel_for(std::size_t count, Body& body) const {
    run_parallel(count, [](void* data, std::size_t index) { (*static_cast<Body*>(data))(index); }, &body);
  }

 private:
  void run_parallel(std::size_t count, void (*call)(void*, std::size_t), void* body) const;

  const ort_abi::Api& api_;
  ort_abi::KernelContext* handle_;
};

/// The kernel of one node. compute() may be called from several threads at once, one call for each Run of the session.
class OpKernel {
 public:
  OpKernel() = default;
  OpKernel(const OpKernel&) = delete;
  OpKernel& operator=(const OpKernel&) = delete;
  virtual ~OpKernel() = default;

  /// Errors end the Run, with the error's text.
  virtual void compute(KernelContext& context) const = 0;
};

/// A declared input or output.
struct OpPort {
  DType dtype;
  bool optional = false;
};

/// An operator for one choice of element types. Operators with one name and different types are told apart by their
/// nodes' types.
struct OpDefinition {
  std::string name;
  std::vector<OpPort> inputs;
  std::vector<OpPort> outputs;
  /// Makes the kernel of a node; called while a session is created. Errors end the creation.
  std::function<std::unique_ptr<OpKernel>(const KernelInfo&)> create;
};

/// Operators of ours in one ONNX operator domain, version 1, for one loaded ONNX Runtime. Must outlive every session
/// that it was added to. const methods are thread-safe.
class OpDomain {
 public:
  OpDomain(const ort_abi::Api& api, const std::string& name, std::vector<OpDefinition> definitions);
  /// For an ONNX Runtime that this process did not load through Library. `api_base`: what its OrtGetApiBase returns.
  /// Throws kBackend when its version is not supported.
  OpDomain(const void* api_base, const std::string& name, std::vector<OpDefinition> definitions);
  OpDomain(const OpDomain&) = delete;
  OpDomain& operator=(const OpDomain&) = delete;
  ~OpDomain();

  /// Makes sessions with these options know the operators. Throws kBackend.
  void add_to(ort_abi::SessionOptions* options) const;

 private:
  struct Operator;
  void make(const std::string& name, std::vector<OpDefinition> definitions);

  std::shared_ptr<const ort_abi::Api> api_;  ///< shared only to keep the type incomplete here
  std::vector<std::unique_ptr<Operator>> operators_;
  ort_abi::CustomOpDomain* handle_ = nullptr;
};

/// ONNX Runtime's status (OrtStatus*) of an error, of the ONNX Runtime behind `api_base`; it becomes the caller's.
ort_abi::Status* make_status(const void* api_base, const std::string& message) noexcept;

}  // namespace genai::ort
