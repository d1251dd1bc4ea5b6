#include "ep/runtime/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

namespace npu {
namespace {

// The first word of a file as a number; nullopt for "max" (no limit) and unreadable files.
std::optional<double> ReadNumber(const std::string& path) {
  std::ifstream in(path);
  double value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

// The folders that may contain a limit for `controller`: this process's group and all its ancestors, of version 2 (one
// tree) and version 1 (one tree per controller).
std::vector<std::string> GroupFolders(const MachineFiles& files, const std::string& controller) {
  std::vector<std::string> folders;
  std::ifstream in(files.proc_root + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers(1, ',');
    controllers.append(line, first + 1, second - first - 1).append(1, ',');
    std::string root;
    if (controllers == ",,") {
      root = files.cgroup_root;
    } else if (controllers.find("," + controller + ",") != std::string::npos) {
      root = files.cgroup_root + "/" + controller;
    } else {
      continue;
    }
    // Inside a container the path may name a group that is mounted as the root, so the root counts too.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      folders.push_back(root + path);
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return folders;
}

double QuotaInCores(const MachineFiles& files) {
  double cores = std::numeric_limits<double>::infinity();
  for (const std::string& folder : GroupFolders(files, "cpu")) {
    std::ifstream v2(folder + "/cpu.max");
    double quota = 0, period = 0;
    if (v2 >> quota >> period && period > 0) cores = std::min(cores, quota / period);
    const auto v1_quota = ReadNumber(folder + "/cpu.cfs_quota_us");
    const auto v1_period = ReadNumber(folder + "/cpu.cfs_period_us");
    if (v1_quota && v1_period && *v1_quota > 0 && *v1_period > 0) cores = std::min(cores, *v1_quota / *v1_period);
  }
  return cores;
}

int AffinityCores() {
  // A mask larger than cpu_set_t makes the call fail with EINVAL, hence the growing set.
  for (int cpus = CPU_SETSIZE; cpus <= (1 << 20); cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

double MemInfo(const MachineFiles& files, const std::string& key) {
  std::ifstream in(files.proc_root + "/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size() + 1, key + ":") != 0) continue;
    std::istringstream words(line.substr(key.size() + 1));
    double kib = 0;
    words >> kib;
    return kib * 1024;
  }
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

size_t ToBytes(double bytes) {
  return static_cast<size_t>(std::clamp(bytes, 0.0, static_cast<double>(std::numeric_limits<int64_t>::max() / 2)));
}

}  // namespace

int UsableCores(const MachineFiles& files) {
  const double cores = std::min(static_cast<double>(AffinityCores()), std::ceil(QuotaInCores(files)));
  return std::max(1, static_cast<int>(cores));
}

size_t UsableMemory(const MachineFiles& files) {
  double bytes = MemInfo(files, "MemTotal");
  for (const std::string& folder : GroupFolders(files, "memory"))
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"})
      if (const auto limit = ReadNumber(folder + file)) bytes = std::min(bytes, *limit);
  return ToBytes(bytes);
}

size_t AvailableMemory(const MachineFiles& files) {
  double bytes = MemInfo(files, "MemAvailable");
  for (const std::string& folder : GroupFolders(files, "memory")) {
    const auto v2_limit = ReadNumber(folder + "/memory.max"), v2_used = ReadNumber(folder + "/memory.current");
    if (v2_limit && v2_used) bytes = std::min(bytes, *v2_limit - *v2_used);
    const auto v1_limit = ReadNumber(folder + "/memory.limit_in_bytes");
    const auto v1_used = ReadNumber(folder + "/memory.usage_in_bytes");
    if (v1_limit && v1_used) bytes = std::min(bytes, *v1_limit - *v1_used);
  }
  return ToBytes(bytes);
}

}  // namespace npu
