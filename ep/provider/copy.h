// Copies between host and device with ORT's semantics: when a copy to the device returns, ORT may reuse pageable host
// memory; when a copy to pageable memory returns, ORT may read it. Copies from and to pinned memory are work of their
// stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"

namespace npu::provider {

enum class Place { kHost, kPinned, kDevice };

// Before a copy without a stream: what this thread has enqueued, in a run too, may still write the source. Onnxruntime
// makes such copies within a run for a node of the CPU in a body whose If, Loop or Scan is on the NPU.
void WaitForThread(DeviceState& device);

// `stream` null: the copy waits for the work that this thread has enqueued on the device and is done when this returns.
void CopyBytes(DeviceState& device, Stream* stream, void* dst, Place to, const void* src, Place from, size_t bytes);

struct TensorType {
  ONNXTensorElementDataType element;
  const int64_t* dims = nullptr;  // owned by the value
  size_t rank = 0;
};
// The type of a value to be copied; throws if it is not a tensor.
TensorType CopiedType(const Api& api, const OrtValue* value);

// Copies one tensor; throws for strings, which have no device form.
void CopyTensor(const Api& api, DeviceState& device, Stream* stream, const OrtValue* src, Place from, OrtValue* dst,
                Place to);

}  // namespace npu::provider
