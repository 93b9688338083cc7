#pragma once

#include <pybind11/pybind11.h>

#include <utility>

namespace genai::bindings {

/// A Python object that may be dropped on any thread: the destructor takes the GIL.
class SharedObject {
 public:
  /// Requires the GIL.
  explicit SharedObject(pybind11::object object) : object_(std::move(object)) {}
  ~SharedObject() {
    const pybind11::gil_scoped_acquire gil;
    object_ = pybind11::object();
  }
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;
  /// Requires the GIL for everything but passing it on.
  const pybind11::object& get() const { return object_; }

 private:
  pybind11::object object_;
};

}  // namespace genai::bindings
