#include "ep/provider/factory.h"

#include <onnxruntime_ep_device_ep_metadata_keys.h>

#include <charconv>
#include <cstring>
#include <string>

#include "ep/provider/allocator.h"
#include "ep/provider/context/stamp.h"
#include "ep/provider/data_transfer.h"
#include "ep/provider/ep.h"
#include "ep/provider/logging.h"
#include "ep/provider/sync_stream.h"

namespace npu::provider {
namespace {

constexpr uint32_t kVendorId = 0x19E5;
// Memory has no vendor: otherwise binding by device name, bind_input("npu", 0, ...), does not find it.
constexpr uint32_t kMemoryVendorId = 0;
constexpr char kDeviceIndexKey[] = "npu_index";
constexpr char kVersion[] = NPU_VERSION;

Factory& Self(OrtEpFactory* self) { return *static_cast<Factory*>(self); }

}  // namespace

Factory::Factory(const Api& api, const OrtLogger* logger) : OrtEpFactory{}, api_(api), logger_(logger) {
  Runtime& runtime = Runtime::Instance();
  for (int i = 0; i < runtime.device_count(); ++i) {
    devices_.push_back(std::make_unique<DeviceState>(runtime.device(i)));
  }

  ort_version_supported = ORT_API_VERSION;
  GetName = [](const OrtEpFactory*) noexcept -> const char* { return kEpName; };
  GetVendor = [](const OrtEpFactory*) noexcept { return "onnxruntime-npu"; };
  GetVendorId = [](const OrtEpFactory*) noexcept { return kVendorId; };
  GetVersion = [](const OrtEpFactory*) noexcept -> const char* { return kVersion; };
  IsStreamAware = [](const OrtEpFactory*) noexcept { return true; };
  GetSupportedDevices = [](OrtEpFactory* self, const OrtHardwareDevice* const*, size_t, OrtEpDevice** out, size_t room,
                           size_t* count) noexcept {
    *count = 0;
    return Guard(Self(self).api_.ort, [&] { Self(self).AddDevices(out, room, count); });
  };
  CreateEp = [](OrtEpFactory* self, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const* metadata,
                size_t count, const OrtSessionOptions* session_options, const OrtLogger* session_logger,
                OrtEp** out) noexcept {
    *out = nullptr;
    return Guard(Self(self).api_.ort, [&] {
      *out = Self(self).MakeEp(metadata, count, session_options, session_logger);
      Self(self).AddUser();
    });
  };
  ReleaseEp = [](OrtEpFactory* self, OrtEp* ep) noexcept {
    DeleteEp(ep);
    Self(self).RemoveUser();
  };
  ValidateCompiledModelCompatibilityInfo = [](OrtEpFactory* self, const OrtHardwareDevice* const*, size_t,
                                              const char* stamp, OrtCompiledModelCompatibility* out) noexcept {
    return Guard(Self(self).api_.ort, [&] {
      *out = StampOf(Self(self).device(0).device().backend()).Text() == stamp
                 ? OrtCompiledModelCompatibility_EP_SUPPORTED_OPTIMAL
                 : OrtCompiledModelCompatibility_EP_SUPPORTED_PREFER_RECOMPILATION;
    });
  };
  CreateAllocator = [](OrtEpFactory* self, const OrtMemoryInfo* info, const OrtKeyValuePairs*,
                       OrtAllocator** out) noexcept {
    *out = nullptr;
    return Guard(Self(self).api_.ort, [&] {
      *out = Self(self).MakeAllocator(info);
      Self(self).AddUser();
    });
  };
  ReleaseAllocator = [](OrtEpFactory* self, OrtAllocator* allocator) noexcept {
    DeleteAllocator(allocator);
    Self(self).RemoveUser();
  };
  CreateDataTransfer = [](OrtEpFactory* self, OrtDataTransferImpl** out) noexcept {
    *out = nullptr;
    Factory& me = Self(self);
    return Guard(me.api_.ort, [&] {
      *out = NewDataTransfer(me.api_, me.devices_, [&me] { me.RemoveUser(); });
      me.AddUser();
    });
  };
  CreateSyncStreamForDevice = [](OrtEpFactory* self, const OrtMemoryDevice* memory, const OrtKeyValuePairs*,
                                 OrtSyncStreamImpl** out) noexcept {
    *out = nullptr;
    Factory& me = Self(self);
    return Guard(me.api_.ort, [&] {
      *out = NewUserStream(me.api_, me.DeviceOfMemory(memory), [&me] { me.RemoveUser(); });
      me.AddUser();
    });
  };
  GetNumCustomOpDomains = [](OrtEpFactory*, size_t* count) noexcept -> OrtStatus* {
    *count = 1;
    return nullptr;
  };
  GetCustomOpDomains = [](OrtEpFactory* self, OrtCustomOpDomain** out, size_t count) noexcept {
    return Guard(Self(self).api_.ort, [&] {
      NPU_CHECK(count == 1, "expected room for 1 custom operator domain, got ", count);
      out[0] = Self(self).custom_ops().get();
    });
  };
}

DeviceState& Factory::device(int index) {
  NPU_CHECK(index >= 0 && static_cast<size_t>(index) < devices_.size(),
            "NPUExecutionProvider: provider option 'device_id' expected 0 to ", devices_.size() - 1, "; got '", index,
            "'");
  return *devices_[static_cast<size_t>(index)];
}

const OrtKernelRegistry* Factory::kernel_registry(ValuePlacement placement) {
  std::lock_guard lock(mutex_);
  auto& registry = kernel_registries_[static_cast<size_t>(placement)];
  if (registry == nullptr) registry = std::make_unique<KernelRegistry>(api_, kEpName, placement);
  return registry->get();
}

CustomOpDomain& Factory::custom_ops() {
  std::lock_guard lock(mutex_);
  if (custom_ops_ == nullptr) custom_ops_ = std::make_unique<CustomOpDomain>(api_.ort);
  return *custom_ops_;
}

const OrtMemoryInfo* Factory::AddMemoryInfo(const char* name, int device, OrtDeviceMemoryType memory,
                                            OrtAllocatorType type) {
  OrtMemoryInfo* raw = nullptr;
  // Alignment 0, ORT's default: it is part of a memory's identity, and every pointer is aligned anyway.
  api_.Check(
      api_.ort.CreateMemoryInfo_V2(name, OrtMemoryInfoDeviceType_NPU, kMemoryVendorId, device, memory, 0, type, &raw));
  memory_infos_.push_back(Own(raw, api_.ort.ReleaseMemoryInfo));
  return raw;
}

void Factory::AddDevices(OrtEpDevice** out, size_t room, size_t* count) {
  if (devices_.size() > room) {
    Log(api_, logger_, ORT_LOGGING_LEVEL_WARNING,
        Concat("onnxruntime takes ", room, " devices of a provider; NPUs ", room, " and up are not offered"));
  }
  for (size_t i = 0; i < devices_.size() && i < room; ++i) {
    const int index = static_cast<int>(i);
    const std::string index_text = std::to_string(index);
    OrtKeyValuePairs* pairs = nullptr;
    api_.ort.CreateKeyValuePairs(&pairs);
    auto metadata = Own(pairs, api_.ort.ReleaseKeyValuePairs);
    api_.ort.AddKeyValuePair(pairs, kDeviceIndexKey, index_text.c_str());
    api_.ort.AddKeyValuePair(pairs, "name", devices_[i]->device().properties().name.c_str());
    api_.ort.AddKeyValuePair(pairs, kOrtHardwareDevice_MetadataKey_IsVirtual, "1");

    OrtHardwareDevice* hardware = nullptr;
    api_.Check(api_.ep.CreateHardwareDevice(OrtHardwareDeviceType_NPU, kVendorId, static_cast<uint32_t>(index),
                                            "onnxruntime-npu", pairs, &hardware));
    hardware_.push_back(Own(hardware, api_.ep.ReleaseHardwareDevice));
    OrtEpDevice* raw = nullptr;
    api_.Check(api_.ep.CreateEpDevice(this, hardware, pairs, nullptr, &raw));
    auto ep_device = Own(raw, api_.ep.ReleaseEpDevice);
    for (const OrtMemoryInfo* info :
         {AddMemoryInfo("npu", index, OrtDeviceMemoryType_DEFAULT, OrtDeviceAllocator),
          AddMemoryInfo("npu", index, OrtDeviceMemoryType_DEFAULT, OrtReadOnlyAllocator),
          AddMemoryInfo("npu_pinned", index, OrtDeviceMemoryType_HOST_ACCESSIBLE, OrtDeviceAllocator)}) {
      api_.Check(api_.ep.EpDevice_AddAllocatorInfo(raw, info));
    }
    out[(*count)++] = ep_device.release();
  }
}

OrtEp* Factory::MakeEp(const OrtKeyValuePairs* const* metadata, size_t count, const OrtSessionOptions* session_options,
                       const OrtLogger* logger) {
  NPU_CHECK(count == 1, "NPUExecutionProvider: expected one device per session, got ", count,
            "; pick one of get_ep_devices()");
  int index = -1;
  const char* text = api_.ort.GetKeyValue(metadata[0], kDeviceIndexKey);
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), index);
  Options options = ReadOptions(api_, session_options, index);
  const Backend& backend = device(options.device_id).device().backend();
  options.host_memory = options.host_memory && backend.KernelsReachHostMemory();
  NPU_CHECK(!options.compile || backend.KernelsReachHostMemory(), "NPUExecutionProvider: ep.context_enable expected ",
            "a device whose kernels reach host memory, got one of backend ", backend.name());
  // ORT places the session's memory on the device it chose, so no other device can serve it.
  NPU_CHECK(options.device_id == index, "NPUExecutionProvider: provider option 'device_id' expected ", index,
            ", the device that onnxruntime chose; got '", options.device_id, "'");
  try {
    return NewEp(*this, options, logger);
  } catch (const Error& error) {
    // By the name, session_hook.py recognises the provider's error: onnxruntime itself would continue with the CPU.
    throw Error(error.code(), Concat(kEpName, ": ", error.what()));
  }
}

DeviceState& Factory::DeviceOfMemory(const OrtMemoryDevice* memory) {
  return device(static_cast<int>(api_.ep.MemoryDevice_GetDeviceId(memory)));
}

OrtAllocator* Factory::MakeAllocator(const OrtMemoryInfo* info) {
  NPU_CHECK(info != nullptr, "NPUExecutionProvider: expected a memory description, got none");
  const OrtMemoryDevice* memory = api_.ep.MemoryInfo_GetMemoryDevice(info);
  DeviceState& owner = DeviceOfMemory(memory);
  return api_.ep.MemoryDevice_GetMemoryType(memory) == OrtDeviceMemoryType_HOST_ACCESSIBLE
             ? NewPinnedAllocator(api_, owner, info, logger_)
             : NewDeviceAllocator(api_, owner, info, logger_);
}

}  // namespace npu::provider
