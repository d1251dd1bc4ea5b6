#include "ep/runtime/machine.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cpp/support/temporary_folder.h"

namespace npu {
namespace {

// A file tree like the kernel's /proc and /sys.
class FakeMachine {
 public:
  FakeMachine() { Write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(root_.path()) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  MachineFiles files() const { return {root_.path() + "/cgroup", root_.path() + "/proc"}; }

 private:
  test::TemporaryFolder root_;
};

constexpr size_t kGiB = size_t{1} << 30;

}  // namespace

TEST_CASE("this machine has cores and memory") {
  CHECK(UsableCores() >= 1);
  CHECK(UsableMemory() > 0);
  CHECK(AvailableMemory() > 0);
  CHECK(AvailableMemory() <= UsableMemory());
}

TEST_CASE("without control groups the machine's own limits apply") {
  FakeMachine machine;
  CHECK(UsableMemory(machine.files()) == 16 * kGiB);
  CHECK(AvailableMemory(machine.files()) == 8 * kGiB);
}

TEST_CASE("version 2 control groups: the tightest limit up to the root applies") {
  FakeMachine machine;
  machine.Write("proc/self/cgroup", "0::/outer/inner\n");
  machine.Write("cgroup/outer/memory.max", "4294967296\n");
  machine.Write("cgroup/outer/memory.current", "1073741824\n");
  machine.Write("cgroup/outer/inner/memory.max", "max\n");
  machine.Write("cgroup/outer/inner/memory.current", "5\n");
  machine.Write("cgroup/outer/inner/cpu.max", "50000 100000\n");
  CHECK(UsableMemory(machine.files()) == 4 * kGiB);
  CHECK(AvailableMemory(machine.files()) == 3 * kGiB);
  CHECK(UsableCores(machine.files()) == 1);
}

TEST_CASE("in a container the limit is read at the root of the mount") {
  FakeMachine machine;
  machine.Write("proc/self/cgroup", "0::/not/visible/here\n");
  machine.Write("cgroup/memory.max", "2147483648\n");
  machine.Write("cgroup/cpu.max", "max 100000\n");
  CHECK(UsableMemory(machine.files()) == 2 * kGiB);
  CHECK(UsableCores(machine.files()) == UsableCores({"/nonexistent", "/nonexistent"}));
}

TEST_CASE("version 1 control groups") {
  FakeMachine machine;
  machine.Write("proc/self/cgroup", "4:memory:/job\n2:cpuacct,cpu:/job\n1:name=systemd:/\n");
  machine.Write("cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  machine.Write("cgroup/memory/job/memory.usage_in_bytes", "2147483648\n");       // above the limit: no memory is left
  machine.Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // the kernel's value for "no limit"
  machine.Write("cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
  machine.Write("cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  CHECK(UsableMemory(machine.files()) == kGiB);
  CHECK(AvailableMemory(machine.files()) == 0);
  CHECK(UsableCores(machine.files()) == 1);
}

TEST_CASE("malformed files are ignored") {
  FakeMachine machine;
  machine.Write("proc/self/cgroup", "nonsense\n::\n0::\n");
  machine.Write("cgroup/memory.max", "lots\n");
  machine.Write("cgroup/cpu.max", "\n");
  CHECK(UsableMemory(machine.files()) == 16 * kGiB);
  CHECK(UsableCores(machine.files()) >= 1);
}

}  // namespace npu
