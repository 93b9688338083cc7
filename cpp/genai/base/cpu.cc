#include "genai/base/cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "genai/base/read_file.h"

namespace genai {
namespace {

std::optional<double> read_number(const std::string& path) {
  const std::optional<std::string> text = read_file(path);
  if (!text) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text->c_str(), &end);
  if (end == text->c_str()) return std::nullopt;
  return value;
}

/// Smallest quota of the group `path` below `root` and of its parents. A container often sees only its own group,
/// mounted at the root, so a folder that does not exist is passed over.
template <typename ReadQuota>
std::optional<double> smallest_quota(const std::string& root, std::string path, ReadQuota read_quota) {
  std::optional<double> smallest;
  while (true) {
    const std::optional<double> quota = read_quota(root + path);
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
    if (path.empty()) return smallest;
    const std::size_t slash = path.rfind('/');
    path.resize(slash == std::string::npos ? 0 : slash);
  }
}

#if defined(__linux__)
/// CPUs in the affinity mask; empty when the kernel does not tell.
std::vector<int> allowed_cpus() {
  for (int max_cpus = 1024; max_cpus <= 1 << 20; max_cpus *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(max_cpus));
    if (set == nullptr) return {};
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(max_cpus));
    std::vector<int> cpus;
    const bool known = sched_getaffinity(0, size, set) == 0;
    for (int cpu = 0; known && cpu < max_cpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (known) return cpus;
  }
  return {};
}

int allowed_physical_cores() {
  const std::vector<int> cpus = allowed_cpus();
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::optional<std::string> siblings = read_file(folder + "core_cpus_list");
    if (!siblings) siblings = read_file(folder + "thread_siblings_list");
    cores.insert(siblings ? *siblings : "cpu " + std::to_string(cpu));
  }
  return static_cast<int>(cores.size());
}
#else
int allowed_physical_cores() {
  return static_cast<int>(std::thread::hardware_concurrency());
}
#endif

}  // namespace

std::optional<double> parse_cpu_max(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::string quota;
  double period = 0;
  if (!(in >> quota >> period) || quota == "max" || period <= 0) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(quota.c_str(), &end);
  if (*end != '\0' || value <= 0) return std::nullopt;
  return value / period;
}

std::optional<std::string> parse_cgroup_path(std::string_view text, std::string_view controller) {
  std::istringstream in{std::string(text)};
  std::string line;
  while (std::getline(in, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    std::istringstream names(line.substr(first + 1, second - first - 1));
    bool match = controller.empty() && first + 1 == second;
    std::string name;
    while (!controller.empty() && std::getline(names, name, ',')) match = match || name == controller;
    if (!match) continue;
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    return path;
  }
  return std::nullopt;
}

std::optional<double> cgroup_cpu_quota(const std::string& root) {
  const std::optional<std::string> groups = read_file(root + "/proc/self/cgroup");
  if (!groups) return std::nullopt;
  const auto read_v2 = [](const std::string& folder) -> std::optional<double> {
    const std::optional<std::string> text = read_file(folder + "/cpu.max");
    return text ? parse_cpu_max(*text) : std::nullopt;
  };
  const auto read_v1 = [](const std::string& folder) -> std::optional<double> {
    const std::optional<double> quota = read_number(folder + "/cpu.cfs_quota_us");
    const std::optional<double> period = read_number(folder + "/cpu.cfs_period_us");
    if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
    return *quota / *period;
  };
  std::optional<double> smallest;
  const auto consider = [&smallest](std::optional<double> quota) {
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
  };
  if (const auto path = parse_cgroup_path(*groups, "")) {
    consider(smallest_quota(root + "/sys/fs/cgroup", *path, read_v2));
  }
  if (const auto path = parse_cgroup_path(*groups, "cpu")) {
    consider(smallest_quota(root + "/sys/fs/cgroup/cpu", *path, read_v1));
    consider(smallest_quota(root + "/sys/fs/cgroup/cpu,cpuacct", *path, read_v1));
  }
  return smallest;
}

int usable_physical_cores(const std::string& root) {
  int cores = allowed_physical_cores();
  if (cores < 1) cores = static_cast<int>(std::thread::hardware_concurrency());
  if (const std::optional<double> quota = cgroup_cpu_quota(root)) {
    cores = std::min(cores, static_cast<int>(std::ceil(*quota)));
  }
  return std::max(cores, 1);
}

}  // namespace genai
