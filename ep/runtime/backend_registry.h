// Backends by name. Each registers itself in its own source file; there is no central list.
#pragma once

#include <memory>
#include <string>

#include "ep/runtime/backend.h"

namespace npu {

struct BackendEntry {
  std::string name;
  std::string kernels;                 // whose kernel libraries it loads, libnpu_kernels_<kernels>[_<isa>].so
  std::unique_ptr<Backend> (*make)();  // from the environment
};

// To be called by a static initialiser of libnpu_runtime.so. Throws when the name is taken.
bool RegisterBackend(BackendEntry entry);

// Throws Error(kInvalidArgument) that lists the known names.
const BackendEntry& FindBackend(const std::string& name);

// The backend that ORT_NPU_BACKEND names, or host if unset.
const BackendEntry& BackendFromEnvironment();

}  // namespace npu
