// The launch that MatMul and the operators like it share.
#pragma once

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/matmul_shape.h"

namespace npu {

// Packs a constant second operand that is one matrix of floats; false if it is none.
bool PackMatMulWeight(const char* op, const TensorView& constant, gemm::PackedWeight& packed, Stream& stream);

// Launches y = a * b, of one type and the shapes `s`. If `packed` has panels, b is read from these, and its data may be
// null; it must outlive the launch.
void LaunchMatMul(OpContext& ctx, const char* op, const TensorView& a, const TensorView& b,
                  const gemm::PackedWeight& packed, const MatMulShape& s, const TensorView& y);

}  // namespace npu
