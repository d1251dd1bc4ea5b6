// The hooks that torch requires of an accelerator.
#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <torch/library.h>

#include "ep/runtime/pinned_memory.h"
#include "python/csrc/torch/generator.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

void FreePinned(void* address) { PinnedMemory::Instance().Free(address); }

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    void* address = PinnedMemory::Instance().Allocate(bytes);
    return {address, address, &FreePinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreePinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(Runtime::Instance().device_count());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { SetCurrentDevice(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(CurrentDevice()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex previous = getCurrentDevice();
    if (device >= 0) SetCurrentDevice(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  // Pinned memory serves every device, so it is reported as the current one's.
  at::Device getDeviceFromPtr(void* address) const override {
    if (PinnedMemory::Instance().Contains(address)) return DeviceAt(CurrentDevice());
    for (int i = 0; i < Runtime::Instance().device_count(); ++i)
      if (Runtime::Instance().device(i).allocator().LiveBlockAround(address) != nullptr) return DeviceAt(i);
    TORCH_CHECK(false, "The specified pointer resides on host memory and is not registered with any NPU device.");
  }

  bool isPinnedPtr(const void* address) const override { return PinnedMemory::Instance().Contains(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator allocator;
    return &allocator;
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return DefaultGenerator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return NewGenerator(device); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    ResizeStorage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

struct HooksRegistration {
  HooksRegistration() {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    // Before this, torch takes no memory for pinned, also memory that onnxruntime has pinned.
    at::globalContext().lazyInitDevice(c10::DeviceType::PrivateUse1);
  }
} hooks_registration;

// A tensor may replace one of the other device: `parameter.data = tensor.npu()`.
bool MayReplace(const at::Tensor& self, const at::Tensor& from) {
  const auto plain = [](const at::Tensor& t) { return t.layout() == at::kStrided && !t.is_quantized(); };
  return plain(self) && plain(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators(library).impl("_has_compatible_shallow_copy_type", &MayReplace);
}

}  // namespace
}  // namespace npu::aten
