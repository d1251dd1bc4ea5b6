// ORT's allocators on top of the process's caching allocator and of pinned host memory.
#pragma once

#include <string>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"

namespace npu::provider {

// Device memory. `info` belongs to the caller and must outlive the allocator.
OrtAllocator* NewDeviceAllocator(const Api& api, DeviceState& device, const OrtMemoryInfo* info,
                                 const OrtLogger* logger);
// Host memory that copies to and from the device need not stage.
OrtAllocator* NewPinnedAllocator(const Api& api, DeviceState& device, const OrtMemoryInfo* info,
                                 const OrtLogger* logger);
void DeleteAllocator(OrtAllocator* allocator) noexcept;

// Why the last allocation of this thread returned null, which ORT's C ABI cannot express. Cleared by reading.
std::string TakeAllocationError();

}  // namespace npu::provider
