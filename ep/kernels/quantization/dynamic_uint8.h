// A float tensor quantised to uint8 over the range of its values and 0, for a kernel that goes on with it.
#pragma once

#include "ep/kernels/quantization/extremes.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

struct ScaleAndPoint {
  float scale;
  uint8_t point;
};
// Of values of this range.
ScaleAndPoint UInt8ScaleOf(const Extremes& range);

class DynamicUInt8 {
 public:
  // Launches the quantisation of x, of float32, into scratch memory.
  DynamicUInt8(OpContext& ctx, const char* op, const TensorView& x);
  // The same into given memory; a null pointer of `scale` or `point` is not written.
  static void Launch(OpContext& ctx, const char* op, const TensorView& x, uint8_t* values, float* scale,
                     uint8_t* point);

  const TensorView& values() const { return values_; }
  const float* scale() const { return scale_; }       // in a later launch
  const TensorView& point() const { return point_; }  // a scalar

 private:
  TensorView values_, point_;
  float* scale_;
};

}  // namespace npu
