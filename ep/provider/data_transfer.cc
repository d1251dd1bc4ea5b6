#include "ep/provider/data_transfer.h"

#include <optional>
#include <utility>

#include "ep/provider/copy.h"
#include "ep/provider/session_runs.h"
#include "ep/provider/sync_stream.h"

namespace npu::provider {
namespace {

class DataTransfer final : public OrtDataTransferImpl {
 public:
  DataTransfer(const Api& api, const std::vector<std::unique_ptr<DeviceState>>& devices,
               std::function<void()> on_release)
      : OrtDataTransferImpl{}, api_(api), devices_(devices), on_release_(std::move(on_release)) {
    ort_version_supported = ORT_API_VERSION;
    Release = [](OrtDataTransferImpl* self) noexcept {
      const auto on_release = static_cast<DataTransfer*>(self)->on_release_;
      delete static_cast<DataTransfer*>(self);
      on_release();
    };
    CanCopy = [](const OrtDataTransferImpl* self, const OrtMemoryDevice* src, const OrtMemoryDevice* dst) noexcept {
      auto& me = *static_cast<const DataTransfer*>(self);
      const auto from = me.PlaceOf(src), to = me.PlaceOf(dst);
      return from && to && (*from != Place::kHost || *to != Place::kHost);
    };
    CopyTensors = [](OrtDataTransferImpl* self, const OrtValue** src, OrtValue** dst, OrtSyncStream** streams,
                     size_t count) noexcept {
      auto& me = *static_cast<DataTransfer*>(self);
      return Guard(me.api_.ort, [&] {
        for (size_t i = 0; i < count; ++i) me.Copy(src[i], dst[i], streams == nullptr ? nullptr : streams[i]);
      });
    };
  }

 private:
  // nullopt for memory of another provider. This provider's memory has vendor id 0 (see docs/decisions/0002).
  std::optional<Place> PlaceOf(const OrtMemoryDevice* memory) const noexcept {
    switch (api_.ep.MemoryDevice_GetDeviceType(memory)) {
      case OrtMemoryInfoDeviceType_CPU:
        return Place::kHost;
      case OrtMemoryInfoDeviceType_NPU:
        if (api_.ep.MemoryDevice_GetVendorId(memory) != 0) return std::nullopt;
        if (api_.ep.MemoryDevice_GetDeviceId(memory) >= devices_.size()) return std::nullopt;
        return api_.ep.MemoryDevice_GetMemoryType(memory) == OrtDeviceMemoryType_HOST_ACCESSIBLE ? Place::kPinned
                                                                                                 : Place::kDevice;
      default:
        return std::nullopt;
    }
  }

  void Copy(const OrtValue* src, OrtValue* dst, OrtSyncStream* ort_stream) const {
    const OrtMemoryDevice* src_memory = api_.ep.Value_GetMemoryDevice(src);
    const OrtMemoryDevice* dst_memory = api_.ep.Value_GetMemoryDevice(dst);
    const auto from = PlaceOf(src_memory), to = PlaceOf(dst_memory);
    NPU_CHECK(from && to, "[Memcpy] expected host or NPU memory on both sides");
    // At least one side is this provider's; pinned memory belongs to its device.
    DeviceState& device = *devices_[api_.ep.MemoryDevice_GetDeviceId(
        *from == Place::kDevice || *to == Place::kHost ? src_memory : dst_memory)];
    Stream* stream = StreamOf(api_, ort_stream);
    const bool across = *from == Place::kDevice && *to == Place::kDevice &&
                        api_.ep.MemoryDevice_GetDeviceId(src_memory) != api_.ep.MemoryDevice_GetDeviceId(dst_memory);
    // The stream orders the work of one device only.
    if (across) {
      if (stream != nullptr) stream->Synchronize();
      WaitForThread(*devices_[api_.ep.MemoryDevice_GetDeviceId(dst_memory)]);
      stream = nullptr;
    }
    const bool own = stream == nullptr || SessionRuns::EnterCurrent(*stream);
    CopyTensor(api_, device, stream, src, *from, dst, *to);
    if (!own) stream->Synchronize();
  }

  const Api& api_;
  const std::vector<std::unique_ptr<DeviceState>>& devices_;
  const std::function<void()> on_release_;
};

}  // namespace

OrtDataTransferImpl* NewDataTransfer(const Api& api, const std::vector<std::unique_ptr<DeviceState>>& devices,
                                     std::function<void()> on_release) {
  return new DataTransfer(api, devices, std::move(on_release));
}

}  // namespace npu::provider
