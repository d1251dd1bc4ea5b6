// What this process may use of the machine: cores and memory, limited by affinity and control groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace npu {

// Where the kernel's files are read from; tests use a tree of their own.
struct MachineFiles {
  std::string cgroup_root = "/sys/fs/cgroup";
  std::string proc_root = "/proc";
};

// Cores that threads of this process can keep busy: the affinity mask, capped by the CPU quota.
int UsableCores(const MachineFiles& files = {});
// Bytes of memory this process may ever hold: physical memory, capped by control-group limits.
size_t UsableMemory(const MachineFiles& files = {});
// Bytes that can be taken now without swapping or being killed.
size_t AvailableMemory(const MachineFiles& files = {});

}  // namespace npu
