#include "genai/base/cpu.h"

#include <doctest/doctest.h>

#include <thread>

namespace genai {

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

TEST_CASE("UsablePhysicalCores_ThisMachine_IsBetweenOneAndAllThreads") {
  const int cores = usable_physical_cores();

  CHECK(cores >= 1);
  CHECK(cores <= static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace genai
