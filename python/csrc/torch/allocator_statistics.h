// Statistics that a pluggable allocator keeps in torch's own structure.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace npu::aten {

// What the C++ function at `address`, c10::CachingDeviceAllocator::DeviceStats (c10::DeviceIndex), says of a device.
pybind11::dict AllocatorStatistics(uintptr_t address, int device);

}  // namespace npu::aten
