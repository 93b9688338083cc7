#include "genai/base/cpu.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

namespace genai {

namespace {

/// A folder in place of the machine's root, removed at the end.
class FakeRoot {
 public:
  /// `groups` is the text of /proc/self/cgroup.
  explicit FakeRoot(const std::string& groups)
      : path_((std::filesystem::temp_directory_path() / "genai_test_XXXXXX").string()) {
    path_ = mkdtemp(path_.data());
    write("proc/self/cgroup", groups);
  }
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("CpuMax_QuotaAndPeriod_GivesCpus") {
  CHECK(parse_cpu_max("200000 100000\n").value() == doctest::Approx(2.0));
  CHECK(parse_cpu_max("150000 100000").value() == doctest::Approx(1.5));
}

TEST_CASE("CpuMax_NoLimitOrBroken_GivesNothing") {
  for (const char* text : {"max 100000\n", "", "max", "12", "0 100000", "-1 100000", "12x 100000", "5 0"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_cpu_max(text).has_value());
  }
}

TEST_CASE("CgroupPath_V2Line_IsFoundForTheEmptyController") {
  CHECK(parse_cgroup_path("0::/user.slice/app\n", "").value() == "/user.slice/app");
  CHECK(parse_cgroup_path("0::/\n", "").value().empty());
}

TEST_CASE("CgroupPath_V1Line_IsFoundAmongJoinedControllers") {
  const char* text = "4:memory:/m\n2:cpu,cpuacct:/docker/x\n1:name=systemd:/\n0::/u\n";

  CHECK(parse_cgroup_path(text, "cpu").value() == "/docker/x");
  CHECK(parse_cgroup_path(text, "cpuacct").value() == "/docker/x");
  CHECK(parse_cgroup_path(text, "memory").value() == "/m");
  CHECK_FALSE(parse_cgroup_path(text, "pids").has_value());
}

TEST_CASE("CgroupPath_NoUnifiedLine_GivesNothing") {
  CHECK_FALSE(parse_cgroup_path("4:memory:/m\n", "").has_value());
  CHECK_FALSE(parse_cgroup_path("nonsense\n:\n", "cpu").has_value());
}

TEST_CASE("CgroupCpuQuota_V2_IsTheSmallestOfTheGroupAndItsParents") {
  const FakeRoot root("0::/a/b/c\n");
  root.write("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  CHECK_FALSE(cgroup_cpu_quota(root.path()).has_value());

  root.write("sys/fs/cgroup/a/b/cpu.max", "350000 100000\n");
  CHECK(cgroup_cpu_quota(root.path()).value() == doctest::Approx(3.5));

  root.write("sys/fs/cgroup/a/cpu.max", "75000 50000\n");
  root.write("sys/fs/cgroup/a/b/c/cpu.max", "200000 100000\n");
  root.write("sys/fs/cgroup/other/cpu.max", "1000 100000\n");
  CHECK(cgroup_cpu_quota(root.path()).value() == doctest::Approx(1.5));

  root.write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  CHECK(cgroup_cpu_quota(root.path()).value() == doctest::Approx(0.5));
}

TEST_CASE("CgroupCpuQuota_ContainerThatSeesOnlyItsOwnGroupAtTheRoot_IsFound") {
  const FakeRoot root("0::/docker/0123\n");
  root.write("sys/fs/cgroup/cpu.max", "200000 100000\n");

  CHECK(cgroup_cpu_quota(root.path()).value() == doctest::Approx(2.0));
}

TEST_CASE("CgroupCpuQuota_V1_IsTheSmallestOfTheGroupAndItsParents") {
  for (const std::string controller : {"cpu", "cpu,cpuacct"}) {
    CAPTURE(controller);
    const FakeRoot root("5:cpu,cpuacct:/jobs/one\n1:name=systemd:/\n");
    const std::string folder = "sys/fs/cgroup/" + controller;
    root.write(folder + "/jobs/one/cpu.cfs_quota_us", "-1\n");
    root.write(folder + "/jobs/one/cpu.cfs_period_us", "100000\n");
    CHECK_FALSE(cgroup_cpu_quota(root.path()).has_value());

    root.write(folder + "/jobs/cpu.cfs_quota_us", "120000\n");
    root.write(folder + "/jobs/cpu.cfs_period_us", "100000\n");
    CHECK(cgroup_cpu_quota(root.path()).value() == doctest::Approx(1.2));
  }
}

TEST_CASE("CgroupCpuQuota_NoControlGroups_GivesNothing") {
  CHECK_FALSE(cgroup_cpu_quota(FakeRoot("").path()).has_value());
  CHECK_FALSE(cgroup_cpu_quota("/there is no such folder").has_value());
}

TEST_CASE("UsablePhysicalCores_Quota_BoundsThemRoundedUpAndAtLeastOne") {
  const FakeRoot root("0::/\n");
  const int all = usable_physical_cores(root.path());
  const auto with_quota = [&root](const std::string& quota) {
    root.write("sys/fs/cgroup/cpu.max", quota + " 100000\n");
    return usable_physical_cores(root.path());
  };

  CHECK(with_quota("1000") == 1);
  CHECK(with_quota("100000") == 1);
  CHECK(with_quota("100001") == std::min(2, all));
  CHECK(with_quota("900000000") == all);
}

TEST_CASE("UsablePhysicalCores_ThisMachine_IsBetweenOneAndAllThreads") {
  const int cores = usable_physical_cores();

  CHECK(cores >= 1);
  CHECK(cores <= static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace genai
