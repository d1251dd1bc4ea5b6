// Finds and loads libnpu_kernels_<isa>.so.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ep/runtime/isa.h"

namespace npu {

// The levels whose library serves `isa`, best first. A forced level is served by its own library only.
std::vector<std::string> KernelLibraryLevels(Isa isa, bool forced);

// The path of the library to load out of `directory`; throws when none of the levels is there.
std::string ChooseKernelLibrary(const std::string& directory, Isa isa, bool forced);

// Loads the library beside libnpu_runtime.so; its static registrations run meanwhile.
void LoadKernelLibrary();

}  // namespace npu
