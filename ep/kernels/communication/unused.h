// Attributes of the communicating operators that steer other devices.
#pragma once

#include "ep/runtime/kernel_api.h"

namespace npu {

inline void CheckUnused(const char* op, const Attributes& attributes, const char* name, int64_t allowed) {
  const int64_t given = attributes.Int(name);
  NPU_CHECK(given == allowed, "[", op, "] expected ", name, " of ", allowed, " on this device, got ", given);
}

inline void CheckAbsent(const char* op, const Attributes& attributes, const char* name) {
  NPU_CHECK(!attributes.Has(name), "[", op, "] expected ", name, " of None on this device, got ", attributes.Int(name));
}

}  // namespace npu
