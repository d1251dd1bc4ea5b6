// The constant int8 weight of a product with npu_quant_matmul's semantics that is joined with what follows it: panels
// and the scales of columns.
#pragma once

#include "ep/kernels/gemm/packed_scales.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/matmul_shape.h"
#include "ep/kernels/onnx_def.h"

namespace npu {

class Int8Weight {
 public:
  enum In : size_t { kRows, kWeight, kScale };  // and the scales of rows, an operator's last input
  static constexpr DTypeSet kInt8{DType::kInt8}, kScales{DType::kFloat32};
  static constexpr DTypeSet kResults{DType::kFloat16, DType::kBFloat16};

  Int8Weight(const char* op, size_t row_scale, bool gated) : op_(op), row_scale_(row_scale), gated_(gated) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) {
    const Shape& shape = constant.shape;
    if (input == kWeight) {
      NPU_CHECK(shape.rank() == 2, "[", op_, "] expected x2 of two axes, got ", shape);
      NPU_CHECK(!gated_ || shape[1] % 2 == 0, "[", op_, "] expected x2 of an even number of columns, got ", shape[1]);
      const gemm::Matrix b = gemm::Matrix::RowMajor(constant.data, shape[0], shape[1]);
      gated_ ? packed_.PackGated(op_, constant.dtype, b, stream) : packed_.Pack(op_, constant.dtype, b, stream);
      shape_ = shape;
      return true;
    }
    if (input != kScale) return false;
    NPU_CHECK((shape.rank() == 1 || (shape.rank() == 2 && shape[0] == 1)) && shape.back() > 0, "[", op_,
              "] expected scale of shape [N] or [1, N], got ", shape);
    const gemm::Matrix values = gemm::Matrix::RowMajor(constant.data, 1, shape.back());
    gated_ ? scale_.PackGated(op_, constant.dtype, values, stream) : scale_.Pack(op_, constant.dtype, values, stream);
    return true;
  }

  struct Product {
    MatMulShape shape;  // of the result without what is joined
    gemm::Matrix rows;
    gemm::PackedMatrix weight;
    gemm::Epilogue epilogue;  // scales alone
  };
  // Throws "[op] expected …, got …" if the inputs do not fit.
  Product Of(OpContext& ctx) const {
    const TensorView rows = ctx.Input(kRows), row_scale = ctx.Input(row_scale_);
    NPU_CHECK(rows && packed_ && scale_, "[", op_, "] expected x1, and a constant x2 and scale");
    NPU_CHECK(rows.shape.rank() >= 2, "[", op_, "] expected x1 [.., M, K], got ", rows.shape);
    NPU_CHECK(scale_.values().shape[1] == shape_[1], "[", op_, "] expected scale of shape [", shape_[1], "], got [",
              scale_.values().shape[1], "]");
    const Shape each_row(rows.shape.begin(), rows.shape.rank() - 1);
    NPU_CHECK(!row_scale || row_scale.shape == each_row, "[", op_, "] expected pertoken_scale of shape ", each_row,
              ", got ", row_scale.shape);
    Product product{.shape = InferMatMul(op_, rows.shape, shape_)};
    const MatMulShape& s = product.shape;
    product.rows = gemm::Matrix::RowMajor(rows.data, s.a_batches * s.m, s.k);
    product.weight = packed_.matrix(gemm::Matrix::RowMajor(nullptr, s.k, gated_ ? gemm::GatedColumns(s.n) : s.n));
    product.epilogue.column_scale = {static_cast<const float*>(scale_.values().data), 1};
    if (row_scale) product.epilogue.row_scale = {row_scale.as<const float>(), 1};
    return product;
  }

 private:
  const char* op_;
  size_t row_scale_;
  bool gated_;
  gemm::PackedWeight packed_;
  gemm::PackedScales scale_;
  Shape shape_;
};

// For OpDef::unsupported.
inline std::string UnsupportedInt8Weight(const char* op, const NodeView& node) {
  if (node.constant[Int8Weight::kWeight] && node.constant[Int8Weight::kScale]) return "";
  return std::string(op) + " of a weight or scale that is not constant is not implemented";
}

}  // namespace npu
