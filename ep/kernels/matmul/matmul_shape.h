// numpy's matmul rules: the last two axes are matrices, the others broadcast, a 1-D operand is a row or a column.
#pragma once

#include "ep/runtime/kernel_api.h"

namespace npu {

struct MatMulShape {
  int64_t m = 1, k = 1, n = 1;
  Shape batch;                 // broadcast leading axes of the result
  Shape output;                // as the caller receives it
  Shape a_strides, b_strides;  // per axis of `batch`, in matrices; 0 where the operand is broadcast
  int64_t batches = 1, a_batches = 1, b_batches = 1;

  // The indices of the matrices of batch entry i.
  int64_t AIndex(int64_t i) const { return IndexOf(i, a_strides); }
  int64_t BIndex(int64_t i) const { return IndexOf(i, b_strides); }

 private:
  int64_t IndexOf(int64_t i, const Shape& strides) const {
    int64_t index = 0;
    for (int axis = batch.rank() - 1; axis >= 0; --axis) {
      index += i % batch[axis] * strides[axis];
      i /= batch[axis];
    }
    return index;
  }
};

// Throws "[op] expected …, got …" if the operands do not fit.
MatMulShape InferMatMul(const char* op, const Shape& a, const Shape& b);

}  // namespace npu
