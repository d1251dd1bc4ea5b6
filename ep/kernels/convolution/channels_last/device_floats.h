// Floats in device memory that a kernel keeps.
#pragma once

#include <cstdint>
#include <utility>

#include "ep/kernels/onnx_def.h"
#include "ep/runtime/device.h"

namespace npu::channels_last {

class DeviceFloats {
 public:
  DeviceFloats() = default;
  ~DeviceFloats() { Free(); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;

  // Once, or after Free.
  void Allocate(int64_t count, Stream& stream) {
    allocator_ = &stream.device().allocator();
    data_ = static_cast<float*>(allocator_->Allocate(BytesFor(DType::kFloat32, count), stream));
  }
  void Free() {
    if (data_ != nullptr) allocator_->Free(std::exchange(data_, nullptr));
  }
  float* data() const { return data_; }

 private:
  CachingAllocator* allocator_ = nullptr;
  float* data_ = nullptr;
};

}  // namespace npu::channels_last
