// Products of 8-bit operands less their zero points, summed in int32: what MatMulInteger and the operators like it
// share.
#pragma once

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/matmul_shape.h"
#include "ep/kernels/quantization/bytes.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// The zero points of one operand, as int32: one for all of it, or one for each of its rows or columns (`lines`).
class ZeroPoints {
 public:
  ZeroPoints(OpContext& ctx, const char* op, const char* name, const TensorView& given, const TensorView& operand,
             int64_t lines, bool columns);

  // In the launch, before At.
  void Load() const;
  gemm::PerLine<int32_t> At(int64_t matrix) const {
    if (!values_) return {};
    return {values_ + matrix * per_matrix_, per_line_ ? 1 : 0};
  }

 private:
  TensorView given_;
  int32_t* values_ = nullptr;
  int64_t per_matrix_ = 0;
  bool per_line_ = true;
};

// The second operand, kept in panel order if it is a constant.
class IntegerWeight {
 public:
  bool Pack(const char* op, const TensorView& constant, Stream& stream);
  TensorView Of(const TensorView& given) const { return packed_ ? view_ : given; }

  // In a launch: y[s.output] = epilogue(a * b), of int32 or floats. Loads the zero points.
  void Multiply(const TensorView& a, const TensorView& b, const MatMulShape& s, const ZeroPoints& a_zero,
                const ZeroPoints& b_zero, const gemm::Epilogue& epilogue, const TensorView& y) const;

 private:
  gemm::PackedWeight packed_;
  TensorView view_;  // type and shape
};

}  // namespace npu
