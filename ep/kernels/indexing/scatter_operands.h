// The operands of npu:: operators that write updates into a tensor.
#pragma once

#include "ep/runtime/kernel_api.h"

namespace npu {

struct ScatterOperands {
  TensorView self, indices, updates;
};

// Reads the first three inputs: indices of an integer type, updates of self's type. The operator checks the shapes.
inline ScatterOperands ScatterOperandsOf(const char* op, OpContext& ctx) {
  const ScatterOperands t{ctx.Input(0), ctx.Input(1), ctx.Input(2)};
  NPU_CHECK(t.self && t.indices && t.updates, "[", op, "] expected the tensors self, indices and updates");
  NPU_CHECK(t.indices.dtype == DType::kInt32 || t.indices.dtype == DType::kInt64, "[", op,
            "] expected indices of int32 or int64, got ", NameOf(t.indices.dtype));
  NPU_CHECK(t.updates.dtype == t.self.dtype, "[", op, "] expected updates of self's dtype ", NameOf(t.self.dtype),
            ", got ", NameOf(t.updates.dtype));
  return t;
}

}  // namespace npu
