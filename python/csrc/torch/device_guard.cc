// Devices, streams and events for torch.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/thread_name.h>

#include "ep/runtime/pinned_memory.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {

Stream& FromTorch(const c10::Stream& stream) {
  Device& device = Runtime::Instance().device(stream.device_index());
  if (stream.id() == 0) return device.default_stream();
  Stream* found = device.FindStream(static_cast<uint64_t>(stream.id()));
  TORCH_CHECK(found != nullptr, "expected a live stream of npu:", device.index(), ", got stream ", stream.id());
  return *found;
}

void RecordUse(const void* address, c10::Device device, const c10::Stream& stream) {
  if (address == nullptr) return;
  Stream& user = FromTorch(stream);
  if (PinnedMemory::Instance().RecordUse(address, user)) return;
  CachingAllocator& allocator = Runtime::Instance().device(device.index()).allocator();
  void* block = allocator.LiveBlockAround(address);
  allocator.RecordStream(block != nullptr ? block : const_cast<void*>(address), user);
}

namespace {

Event& ToEvent(void* event) { return *static_cast<Event*>(event); }

// torch's threads of the backward pass set their device first. They launch on behalf of the thread that called
// backward(), and never wait for their launches.
void NoteThreadOfBackward() {
  thread_local const bool noted = [] {
    const bool backward = c10::getThreadName().starts_with("pt_autograd_");
    if (backward) SetWorksForOthers(true);
    return backward;
  }();
  (void)noted;
}

class DeviceGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kNpu; }
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return static_cast<c10::DeviceIndex>(Runtime::Instance().device_count());
    } catch (const std::exception&) {
      return 0;
    }
  }

  c10::Device getDevice() const override { return DeviceAt(CurrentDevice()); }
  void setDevice(c10::Device device) const override {
    NoteThreadOfBackward();
    SetCurrentDevice(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    try {
      SetCurrentDevice(device.index());
    } catch (const std::exception&) {
      // A destructor restores a device that was current, so it exists.
    }
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    if (device != previous) setDevice(device);
    return previous;
  }

  c10::Stream getStream(c10::Device device) const override { return ToTorch(CurrentStream(IndexOf(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return ToTorch(Runtime::Instance().device(IndexOf(device)).default_stream());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return ToTorch(PooledStream(IndexOf(device), priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = getStream(stream.device());
    SetCurrentStream(FromTorch(stream));
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return FromTorch(stream).handle(); }
  bool queryStream(const c10::Stream& stream) const override { return FromTorch(stream).Query(); }
  void synchronizeStream(const c10::Stream& stream) const override { FromTorch(stream).Synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    Runtime::Instance().device(device).Synchronize();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "expected a stream of npu:", int{device},
                ", where the event belongs, got one of npu:", int{stream.device_index()});
    if (*event == nullptr)
      *event = new Event(Runtime::Instance().backend(), /*timing=*/flag == c10::EventFlag::BACKEND_DEFAULT);
    ToEvent(*event).Record(FromTorch(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) FromTorch(stream).Wait(ToEvent(event));
  }
  bool queryEvent(void* event) const override { return event == nullptr || ToEvent(event).Query(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) ToEvent(event).Synchronize();
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(begin != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    ToEvent(begin).Synchronize();
    ToEvent(end).Synchronize();
    return ToEvent(begin).ElapsedMs(ToEvent(end));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    RecordUse(data.get(), data.device(), stream);
  }

 private:
  static int IndexOf(c10::Device device) { return device.has_index() ? device.index() : CurrentDevice(); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard);

}  // namespace
}  // namespace npu::aten
