#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace genai {

/// Number of physical cores that this process may use: the cores of the CPUs in its affinity mask (hardware threads of
/// one core count once), at most `cgroup_cpu_quota(root)` rounded up; at least 1. Reads /proc and /sys at each call:
/// the answer may change while the process runs. Thread-safe. `root` is for tests.
int usable_physical_cores(const std::string& root = "");

/// CPUs that the control groups of this process allow it, v1 and v2: the smallest quota of its groups and of their
/// parents; nullopt without any. Reads proc/self/cgroup and sys/fs/cgroup below `root`, which is the machine's own when
/// it is empty. Thread-safe.
std::optional<double> cgroup_cpu_quota(const std::string& root = "");

/// CPUs of a quota in a cgroup v2 `cpu.max` file ("200000 100000" is 2, "max 100000" is nullopt). For tests.
std::optional<double> parse_cpu_max(std::string_view text);

/// Path of the group of `controller` in the text of /proc/self/cgroup: the line of the unified hierarchy ("0::/path")
/// for an empty controller, else the v1 line that lists it; nullopt when there is none. For tests.
std::optional<std::string> parse_cgroup_path(std::string_view text, std::string_view controller);

}  // namespace genai
