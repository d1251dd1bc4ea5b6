// The embedded default backend: this machine's CPU behind the device interface.
#pragma once

#include <memory>
#include <string>

#include "ep/runtime/backend.h"

namespace npu {

struct HostOptions {
  int device_count = 1;
  size_t memory_limit = 0;  // bytes per device
  std::string device_name;
};

// The options that ORT_NPU_* and this machine give.
HostOptions HostOptionsFromEnvironment();

std::unique_ptr<Backend> MakeHostBackend(const HostOptions& options);

}  // namespace npu
