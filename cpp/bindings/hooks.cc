#include "hooks.h"

#include "genai/base/error.h"

#include "shared_object.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace genai::bindings {
namespace {

py::list token_arrays(const HookRows& rows) {
  py::list arrays;
  for (const std::span<const TokenId> tokens : rows.tokens) {
    arrays.append(py::array_t<TokenId>(static_cast<py::ssize_t>(tokens.size()), tokens.data()));
  }
  return arrays;
}

/// A copy, not a view: user code may keep the array after the call.
py::array_t<float> logits_array(const HookRows& rows) {
  const std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(rows.tokens.size()),
                                       static_cast<py::ssize_t>(rows.vocab_size)};
  return py::array_t<float>(shape, rows.logits.data());
}

/// Calls user code; what it raises becomes an error that names the object and the Python exception.
template <typename Body>
void call_user(const char* what, const py::object& object, const Body& body) {
  try {
    body();
  } catch (py::error_already_set& error) {
    throw Error(ErrorCode::kInvalidArgument, std::string(what) + " " +
                                                 std::string(py::str(py::type::of(object).attr("__name__"))) +
                                                 " raised " + error.what());
  } catch (const py::cast_error& error) {
    throw Error(ErrorCode::kInvalidArgument, std::string(what) + " " +
                                                 std::string(py::str(py::type::of(object).attr("__name__"))) +
                                                 " returned a value of the wrong type: " + error.what());
  }
}

class PythonLogitsHook final : public LogitsHook {
 public:
  explicit PythonLogitsHook(py::object processor) : processor_(std::move(processor)) {}

  void process(HookRows& rows) override {
    const py::gil_scoped_acquire gil;
    call_user("logits processor", processor_.get(), [&] {
      const py::array_t<float> logits = logits_array(rows);
      const py::object returned = processor_.get().attr("process")(token_arrays(rows), logits);
      if (!returned.is_none()) {
        throw Error(ErrorCode::kInvalidArgument,
                    "a logits processor returned a value; change the array in place and return None");
      }
      if (static_cast<std::size_t>(logits.nbytes()) != rows.logits.size_bytes()) {
        throw Error(ErrorCode::kInvalidArgument,
                    "a logits processor resized the logits array; change its values in place and keep its size");
      }
      std::memcpy(rows.logits.data(), logits.data(), rows.logits.size_bytes());
    });
  }

 private:
  SharedObject processor_;
};

[[noreturn]] void refuse_ids(const py::handle& value) {
  throw Error(ErrorCode::kInvalidArgument,
              "sampler returned " + std::string(py::repr(value)) + "; allowed: a sequence with one int for each row");
}

/// Whole numbers only: a float or a text that happens to convert is a mistake.
TokenId token_id(const py::handle& value) {
  if (PyBool_Check(value.ptr()) != 0 || PyIndex_Check(value.ptr()) == 0) refuse_ids(value);
  const auto number = py::reinterpret_steal<py::int_>(PyNumber_Index(value.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const std::int64_t id = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || id < INT32_MIN || id > INT32_MAX) refuse_ids(value);
  return static_cast<TokenId>(id);
}

class PythonSamplerHook final : public SamplerHook {
 public:
  explicit PythonSamplerHook(py::object sampler) : sampler_(std::move(sampler)) {}

  std::vector<TokenId> sample(HookRows& rows) override {
    const py::gil_scoped_acquire gil;
    std::vector<TokenId> ids;
    call_user("sampler", sampler_.get(), [&] {
      const py::object returned = sampler_.get().attr("sample")(token_arrays(rows), logits_array(rows));
      if (PySequence_Check(returned.ptr()) == 0 || PyUnicode_Check(returned.ptr()) != 0) refuse_ids(returned);
      for (const py::handle id : returned) ids.push_back(token_id(id));
    });
    return ids;
  }

 private:
  SharedObject sampler_;
};

/// Live hooks by the address of their Python object; the hook keeps the object, so the address cannot be reused while
/// the entry is alive. Guarded by the GIL.
template <typename Hook, typename PythonHook>
std::shared_ptr<Hook> shared_hook(const py::object& object) {
  static std::unordered_map<PyObject*, std::weak_ptr<Hook>> hooks;
  std::erase_if(hooks, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Hook>& entry = hooks[object.ptr()];
  std::shared_ptr<Hook> hook = entry.lock();
  if (!hook) {
    hook = std::make_shared<PythonHook>(object);
    entry = hook;
  }
  return hook;
}

void require_method(const py::object& object, const char* field, const char* method) {
  if (!py::hasattr(object, method)) {
    throw Error(ErrorCode::kInvalidArgument, std::string(field) + " holds " + std::string(py::repr(object)) +
                                                 ", which has no method " + method + "(token_ids, logits)");
  }
}

}  // namespace

std::shared_ptr<LogitsHook> logits_hook(const py::object& processor) {
  require_method(processor, "logits_processors", "process");
  return shared_hook<LogitsHook, PythonLogitsHook>(processor);
}

std::shared_ptr<SamplerHook> sampler_hook(const py::object& sampler) {
  require_method(sampler, "sampler", "sample");
  return shared_hook<SamplerHook, PythonSamplerHook>(sampler);
}

}  // namespace genai::bindings
