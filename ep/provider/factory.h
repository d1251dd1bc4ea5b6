// The object that ORT creates when the library is registered: devices, memory, streams, copies, and providers for
// sessions.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "ep/provider/abi.h"
#include "ep/provider/custom_ops.h"
#include "ep/provider/device_state.h"
#include "ep/provider/kernel_registry.h"

namespace npu::provider {

inline constexpr char kEpName[] = "NPUExecutionProvider";

class Factory final : public OrtEpFactory {
 public:
  Factory(const Api& api, const OrtLogger* logger);

  // The registration and each provider, allocator, data transfer and user stream are users. The last one deletes the
  // factory: a library may be unregistered while sessions and values still exist.
  void AddUser() { users_.fetch_add(1, std::memory_order_relaxed); }
  void RemoveUser() noexcept {
    if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  const Api& api() const { return api_; }
  DeviceState& device(int index);
  // Built for the first session of that placement and shared by all.
  const OrtKernelRegistry* kernel_registry(ValuePlacement placement);

 private:
  void AddDevices(OrtEpDevice** out, size_t room, size_t* count);
  OrtEp* MakeEp(const OrtKeyValuePairs* const* metadata, size_t count, const OrtSessionOptions* session_options,
                const OrtLogger* logger);
  OrtAllocator* MakeAllocator(const OrtMemoryInfo* info);
  DeviceState& DeviceOfMemory(const OrtMemoryDevice* memory);
  const OrtMemoryInfo* AddMemoryInfo(const char* name, int device, OrtDeviceMemoryType memory, OrtAllocatorType type);
  CustomOpDomain& custom_ops();

  ~Factory() = default;

  const Api api_;
  const OrtLogger* logger_;
  std::atomic<size_t> users_{1};
  std::vector<std::unique_ptr<DeviceState>> devices_;
  std::vector<Owned<OrtMemoryInfo>> memory_infos_;
  std::vector<Owned<OrtHardwareDevice>> hardware_;
  std::mutex mutex_;
  std::unique_ptr<KernelRegistry> kernel_registries_[kValuePlacements];
  std::unique_ptr<CustomOpDomain> custom_ops_;
};

}  // namespace npu::provider
