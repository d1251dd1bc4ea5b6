// Finds and loads libnpu_kernels_<backend>_<isa>.so, or libnpu_kernels_<backend>.so of a backend without levels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ep/runtime/isa.h"

namespace npu {

// The levels whose library serves `isa`, best first. A forced level is served by its own library only.
std::vector<std::string> KernelLibraryLevels(Isa isa, bool forced);

// The path of the library to load from `directory`; throws when there is none.
std::string ChooseKernelLibrary(const std::string& directory, const std::string& backend, Isa isa, bool forced);

// Loads the active backend's library from the directory of libnpu_runtime.so, which runs its static registrations.
void LoadKernelLibrary();

}  // namespace npu
