// ORT's allocators over the caching allocator of the process and over pinned host memory.
#pragma once

#include <string>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"

namespace npu::provider {

// Device memory. `info` stays the caller's and must outlive the allocator.
OrtAllocator* NewDeviceAllocator(const Api& api, DeviceState& device, const OrtMemoryInfo* info,
                                 const OrtLogger* logger);
// Host memory that copies to and from the device need not stage.
OrtAllocator* NewPinnedAllocator(const Api& api, DeviceState& device, const OrtMemoryInfo* info,
                                 const OrtLogger* logger);
void DeleteAllocator(OrtAllocator* allocator) noexcept;

// Why the last allocation of this thread gave null; ORT's C ABI has no way to say it. Cleared by reading.
std::string TakeAllocationError();

}  // namespace npu::provider
