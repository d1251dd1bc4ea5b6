// What turns a quantised weight into floats: antiquant_scale and antiquant_offset of torch_npu's operators.
#pragma once

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/quantized_weight.h"
#include "ep/kernels/quantization/scale_values.h"

namespace npu {

// Throws "[op] expected …, got …" unless scale and offset, if present, fit activations of `dtype`, the weight and
// groups of `group` rows; 0: one for each column or for all.
inline void CheckAntiquant(const char* op, DType dtype, const QuantizedWeight& weight, int64_t group,
                           const TensorView& scale, const TensorView& offset) {
  NPU_OP_CHECK(op, scale, "expected the tensor antiquant_scale");
  if (group == 0) {
    CheckPerColumn(op, "antiquant_scale", scale, weight.n);
  } else {
    const int64_t groups = weight.k == 0 ? 0 : (weight.k - 1) / group + 1;
    NPU_OP_CHECK(op, scale.shape == Shape({groups, weight.n}), "expected antiquant_scale of shape [", groups, ", ",
                 weight.n, "], groups of ", group, " rows, got ", scale.shape);
  }
  NPU_OP_CHECK(op, !offset || offset.shape == scale.shape, "expected antiquant_offset of antiquant_scale's shape ",
               scale.shape, ", got ", offset.shape);
  const bool packed = scale.dtype == DType::kInt64;
  NPU_OP_CHECK(op, packed || scale.dtype == dtype, "expected antiquant_scale of x's dtype ", NameOf(dtype),
               ", or int64, got ", NameOf(scale.dtype));
  const DType offset_dtype = packed ? DType::kInt32 : dtype;
  NPU_OP_CHECK(op, !offset || offset.dtype == offset_dtype, "expected antiquant_offset of ", NameOf(offset_dtype),
               ", got ", NameOf(offset.dtype));
}

}  // namespace npu
