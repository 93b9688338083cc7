#include "genai/ort/provider.h"

#include "genai/base/error.h"
#include "genai/ort/library.h"
#include "genai/ort/status.h"

#include "onnxruntime/abi.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace genai::ort {
namespace {

using Devices = std::vector<const ort_abi::EpDevice*>;

/// Names of options, then values, as ONNX Runtime takes them. The provider must outlive it.
struct OptionPointers {
  explicit OptionPointers(const Provider& provider) {
    for (const auto& [key, value] : provider.options) {
      keys.push_back(key.c_str());
      values.push_back(value.c_str());
    }
  }
  std::vector<const char*> keys;
  std::vector<const char*> values;
};

std::string joined(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

Devices all_devices(const Library& library) {
  const ort_abi::EpDevice* const* devices = nullptr;
  std::size_t count = 0;
  throw_if_failed(library.api(), library.api().call<ort_abi::GetEpDevices>(library.env(), &devices, &count),
                  "ONNX Runtime could not list its devices");
  return Devices(devices, devices + count);
}

/// What a plugin library is registered as: many providers take that for their name.
std::string registration_name(const Provider& provider, const std::string& path, std::span<const std::string> taken) {
  std::string name = provider.name.empty() ? std::filesystem::path(path).stem().string() : provider.name;
  if (provider.name.empty() && name.starts_with("lib")) name.erase(0, 3);
  const std::string wanted = name;
  for (int number = 2; std::find(taken.begin(), taken.end(), name) != taken.end(); ++number) {
    name = wanted + "-" + std::to_string(number);
  }
  return name;
}

/// Devices that the plugin library at `path` brought; opens it the first time. The environment of ONNX Runtime is one
/// for the whole process, and so is this table.
Devices plugin_devices(const Library& library, const Provider& provider, const std::string& path) {
  static std::mutex mutex;
  static auto& opened = *new std::map<std::pair<const Library*, std::string>, Devices>;
  static auto& names = *new std::vector<std::string>;

  const std::lock_guard lock(mutex);
  const auto found = opened.find({&library, path});
  if (found != opened.end()) return found->second;
  const Devices before = all_devices(library);
  const std::string name = registration_name(provider, path, names);
  const StatusText status = take_status(library.api(), library.api().call<ort_abi::RegisterExecutionProviderLibrary>(
                                                           library.env(), name.c_str(), path.c_str()));
  if (status.code != 0) {
    throw Error(ErrorCode::kUnsupported, path + ": cannot be used as an execution provider: " + status.message);
  }
  names.push_back(name);
  Devices devices = all_devices(library);
  std::erase_if(devices, [&](const ort_abi::EpDevice* device) {
    return std::find(before.begin(), before.end(), device) != before.end();
  });
  return opened[{&library, path}] = std::move(devices);
}

std::string device_class(const ort_abi::Api& api, const ort_abi::EpDevice* device) {
  const ort_abi::HardwareDevice* const hardware = api.call<ort_abi::EpDeviceDevice>(device);
  if (hardware == nullptr) return "unknown";
  switch (api.call<ort_abi::HardwareDeviceTypeOf>(hardware)) {
    case ort_abi::HardwareDeviceType::kCpu:
      return "CPU";
    case ort_abi::HardwareDeviceType::kGpu:
      return "GPU";
    case ort_abi::HardwareDeviceType::kNpu:
      return "NPU";
  }
  return "unknown";
}

/// The devices of a plugin that the provider means: all of one name.
Devices chosen_devices(const Library& library, const Provider& provider) {
  if (!std::filesystem::path(provider.plugin_path).is_absolute()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the path of the plugin library is \"" + provider.plugin_path + "\"; allowed: an absolute path");
  }
  std::error_code failed;
  const std::string path = std::filesystem::canonical(provider.plugin_path, failed).string();
  if (failed) throw Error(ErrorCode::kNotFound, provider.plugin_path + ": no plugin library there.");
  const ort_abi::Api& api = library.api();
  Devices chosen;
  std::vector<std::string> known;
  std::string name = provider.name;
  for (const ort_abi::EpDevice* const device : plugin_devices(library, provider, path)) {
    const std::string own = api.call<ort_abi::EpDeviceEpName>(device);
    const std::string kind = device_class(api, device);
    known.push_back(own + " on " + kind);
    const bool fits = (name.empty() || own == name) && (provider.device.empty() || kind == provider.device);
    if (!fits) continue;
    name = own;
    chosen.push_back(device);
  }
  if (!chosen.empty()) return chosen;
  const std::string asked =
      (provider.device.empty() ? "" : " " + provider.device) + (provider.name.empty() ? "" : " for " + provider.name);
  throw Error(ErrorCode::kUnsupported, path + ": offers no device" + asked + "; it has: " + joined(known) + ".");
}

void append_plugin(const Library& library, ort_abi::SessionOptions* options, const Provider& provider) {
  const Devices devices = chosen_devices(library, provider);
  const OptionPointers pointers(provider);
  const StatusText status =
      take_status(library.api(), library.api().call<ort_abi::SessionOptionsAppendExecutionProviderV2>(
                                     options, library.env(), devices.data(), devices.size(), pointers.keys.data(),
                                     pointers.values.data(), pointers.keys.size()));
  if (status.code == 0) return;
  throw Error(ErrorCode::kUnsupported,
              provider.plugin_path + ": the execution provider in it cannot be used: " + status.message);
}

}  // namespace

void append_provider(const Library& library, ort_abi::SessionOptions* options, const Provider& provider) {
  if (!provider.plugin_path.empty()) {
    append_plugin(library, options, provider);
    return;
  }
  const OptionPointers pointers(provider);
  const StatusText status = take_status(
      library.api(),
      library.api().call<ort_abi::SessionOptionsAppendExecutionProvider>(
          options, provider.name.c_str(), pointers.keys.data(), pointers.values.data(), pointers.keys.size()));
  if (status.code == 0) return;
  throw Error(ErrorCode::kUnsupported, "the execution provider \"" + provider.name +
                                           "\" cannot be used: " + status.message +
                                           " This ONNX Runtime has: " + joined(library.available_providers()) + ".");
}

std::string check_provider(const Library& library, const Provider& provider) {
  const ort_abi::Api& api = library.api();
  ort_abi::SessionOptions* made = nullptr;
  throw_if_failed(api, api.call<ort_abi::CreateSessionOptions>(&made), "ONNX Runtime could not make session options");
  const auto release = [&api](ort_abi::SessionOptions* options) { api.call<ort_abi::ReleaseSessionOptions>(options); };
  const std::unique_ptr<ort_abi::SessionOptions, decltype(release)> options(made, release);
  append_provider(library, options.get(), provider);
  if (provider.plugin_path.empty()) return provider.name;
  return api.call<ort_abi::EpDeviceEpName>(chosen_devices(library, provider).front());
}

}  // namespace genai::ort
