// Statistics that a pluggable allocator keeps in torch's own structure.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace npu::aten {

// A device's statistics as returned by the C++ function at `address`, c10::CachingDeviceAllocator::DeviceStats
// (c10::DeviceIndex).
pybind11::dict AllocatorStatistics(uintptr_t address, int device);

}  // namespace npu::aten
