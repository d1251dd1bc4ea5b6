// The operands of npu:: operators that write updates into a tensor.
#pragma once

#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

struct ScatterOperands {
  TensorView self, indices, updates;
};

// Reads the first three inputs: indices of an integer type, updates of self's type. The operator checks the shapes.
inline ScatterOperands ScatterOperandsOf(const char* op, OpContext& ctx) {
  const ScatterOperands t{ctx.Input(0), ctx.Input(1), ctx.Input(2)};
  NPU_OP_CHECK(op, t.self && t.indices && t.updates, "expected the tensors self, indices and updates");
  NPU_OP_CHECK(op, t.indices.dtype == DType::kInt32 || t.indices.dtype == DType::kInt64,
               "expected indices of int32 or int64, got ", NameOf(t.indices.dtype));
  NPU_OP_CHECK(op, t.updates.dtype == t.self.dtype, "expected updates of self's dtype ", NameOf(t.self.dtype), ", got ",
               NameOf(t.updates.dtype));
  return t;
}

}  // namespace npu
