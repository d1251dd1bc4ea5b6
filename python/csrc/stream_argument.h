// A stream as Python passes it: its address, checked against the live streams.
#pragma once

#include <cstdint>

#include "ep/runtime/current.h"
#include "ep/runtime/error.h"

namespace npu::python {

// 0: the current stream of the device.
inline Stream& StreamArgument(int device, uintptr_t handle) {
  if (handle == 0) return CurrentStream(device);
  Stream* stream = Runtime::Instance().device(device).FindStream(reinterpret_cast<const void*>(handle));
  NPU_CHECK(stream != nullptr, "expected the handle of a live stream of NPU ", device, ", got ", handle);
  return *stream;
}

}  // namespace npu::python
