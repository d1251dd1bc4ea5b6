// torch's streams are the runtime's: 0 names a device's default stream, any other number is Stream::id().
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "ep/runtime/current.h"

namespace npu::aten {

inline constexpr c10::DeviceType kNpu = c10::DeviceType::PrivateUse1;

inline c10::Device DeviceAt(int index) { return {kNpu, static_cast<c10::DeviceIndex>(index)}; }

inline c10::Stream ToTorch(const Stream& stream) {
  Device& device = stream.device();
  const auto id = &stream == &device.default_stream() ? 0 : static_cast<c10::StreamId>(stream.id());
  return c10::Stream(c10::Stream::UNSAFE, DeviceAt(device.index()), id);
}

Stream& FromTorch(const c10::Stream& stream);

// Records that the stream uses the memory around `address`, which a tensor of `device` holds: device memory, at its
// start or inside, or pinned memory.
void RecordUse(const void* address, c10::Device device, const c10::Stream& stream);

// The stream on which work on `tensor` is enqueued.
inline Stream& StreamOf(const at::TensorBase& tensor) { return CurrentStream(tensor.device().index()); }

}  // namespace npu::aten
