#include "ep/runtime/kernel_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include "ep/runtime/backend_registry.h"
#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "ep/runtime/log.h"

namespace npu {
namespace {

std::string DirectoryOfThisLibrary() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&LoadKernelLibrary), &info) == 0 || info.dli_fname == nullptr)
    Fail(ErrorCode::kInternal, "could not find the path of libnpu_runtime.so");
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string PathOf(const std::string& directory, const std::string& name) {
  return directory + "/libnpu_kernels_" + name + ".so";
}

bool Readable(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

}  // namespace

std::vector<std::string> KernelLibraryLevels(Isa isa, bool forced) {
  if (forced) return {NameOf(LibraryLevel(isa))};
  std::vector<std::string> levels;
  for (Isa level : LevelsFrom(isa))
    if (level == LibraryLevel(level)) levels.emplace_back(NameOf(level));
  return levels;
}

std::string ChooseKernelLibrary(const std::string& directory, const std::string& backend, Isa isa, bool forced) {
  const std::vector<std::string> levels = KernelLibraryLevels(isa, forced);
  for (const std::string& level : levels) {
    const std::string path = PathOf(directory, backend + "_" + level);
    if (!Readable(path)) continue;
    if (level != levels.front())
      NPU_LOG(kInfo, "kernels for ", levels.front(), " were not built; using those for ", level);
    return path;
  }
  // This backend's kernels do not run on this CPU, so its ISA levels do not apply.
  const std::string without_levels = PathOf(directory, backend);
  if (Readable(without_levels)) return without_levels;
  std::string expected;
  for (const std::string& level : levels) expected += PathOf(directory, backend + "_" + level) + " or ";
  expected += without_levels;
  Fail(ErrorCode::kInternal, "no kernel library for ", forced ? "ORT_NPU_ISA=" : "this machine, ", NameOf(isa),
       ": expected ", expected, "; build the package with this level in NPU_ISAS",
       forced ? " or unset ORT_NPU_ISA" : "");
}

void LoadKernelLibrary() {
  const std::string path = ChooseKernelLibrary(DirectoryOfThisLibrary(), BackendFromEnvironment().kernels, ActiveIsa(),
                                               IsaFromEnvironment().has_value());
  // Never closed: kernels and closures in flight point into it.
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
    Fail(ErrorCode::kInternal, "could not load the kernel library: ", dlerror());
  NPU_LOG(kInfo, "kernels: ", path);
}

}  // namespace npu
