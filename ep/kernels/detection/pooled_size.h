// What ONNX's operators that pool regions check alike.
#pragma once

#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu::detection {

// The bins of a region along one axis.
inline int64_t PooledSize(const char* op, const char* name, int64_t size) {
  constexpr int64_t kMost = 1 << 16;
  NPU_OP_CHECK(op, size > 0 && size <= kMost, "expected ", name, " from 1 to ", kMost, ", got ", size);
  return size;
}

// In the launch: the image that a region names. T is any number.
template <class T>
int64_t CheckedImage(const char* op, T image, int64_t images) {
  NPU_OP_CHECK(op, image >= T{0} && image < static_cast<T>(images), "expected regions of images from 0 to ", images - 1,
               ", got ", image);
  return static_cast<int64_t>(image);
}

}  // namespace npu::detection
