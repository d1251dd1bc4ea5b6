// The constant int8 matrix of a product with npu_quant_matmul's semantics that is joined with what reads it: panels and
// the scales of columns.
#pragma once

#include <string>
#include <vector>

#include "ep/kernels/gemm/packed_scales.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/constant_product.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/type_code.h"

namespace npu {

class Int8Weight {
 public:
  static constexpr const char *kGated = "QuantGatedMatMul", *kNormed = "QuantMatMulAddRmsNorm";
  static constexpr size_t kInputs = 3;
  static constexpr DTypeSet kResults{DType::kFloat16, DType::kBFloat16};
  static std::vector<ArgDef> Inputs() {
    return {Input("x1", {DType::kInt8}), Input("x2", {DType::kInt8}), Input("scale", {DType::kFloat32})};
  }
  static std::vector<ArgDef> LastInputs() { return {OptionalInput("pertoken_scale", {DType::kFloat32})}; }
  static std::vector<AttrDef> Attributes(bool gated) {
    if (gated) return {RequiredInt("output_dtype")};
    return {};
  }
  static std::string WhyUnsupported(const NodeView& node, size_t /*last*/) {
    return node.constant[kWeight] && node.constant[kScale] ? "" : "a weight or scale that is not constant";
  }

  Int8Weight(const char* op, const KernelInfo& info, size_t row_scale, bool gated)
      : op_(op), row_scale_(row_scale), gated_(gated) {
    if (gated)
      result_ = ElementTypeOf(op, "output_dtype", info.attributes.Int("output_dtype"),
                              {TypeCode::kFloat16, TypeCode::kBFloat16});
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) {
    const Shape& shape = constant.shape;
    if (input == kWeight) {
      NPU_OP_CHECK(op_, shape.rank() == 2, "expected x2 of two axes, got ", shape);
      NPU_OP_CHECK(op_, !gated_ || shape[1] % 2 == 0, "expected x2 of an even number of columns, got ", shape[1]);
      const gemm::Matrix b = gemm::Matrix::RowMajor(constant.data, shape[0], shape[1]);
      gated_ ? packed_.PackGated(op_, constant.dtype, b, stream) : packed_.Pack(op_, constant.dtype, b, stream);
      shape_ = shape;
      return true;
    }
    if (input != kScale) return false;
    NPU_OP_CHECK(op_, (shape.rank() == 1 || (shape.rank() == 2 && shape[0] == 1)) && shape.back() > 0,
                 "expected scale of shape [N] or [1, N], got ", shape);
    const gemm::Matrix values = gemm::Matrix::RowMajor(constant.data, 1, shape.back());
    gated_ ? scale_.PackGated(op_, constant.dtype, values, stream) : scale_.Pack(op_, constant.dtype, values, stream);
    return true;
  }

  // Throws "[op] expected …, got …" if the inputs do not fit.
  ConstantProduct Of(OpContext& ctx) const {
    const TensorView rows = ctx.Input(0), row_scale = ctx.Input(row_scale_);
    NPU_OP_CHECK(op_, rows && packed_ && scale_, "expected x1, and a constant x2 and scale");
    NPU_OP_CHECK(op_, rows.shape.rank() >= 2, "expected x1 [.., M, K], got ", rows.shape);
    NPU_OP_CHECK(op_, scale_.values().shape[1] == shape_[1], "expected scale of shape [", shape_[1], "], got [",
                 scale_.values().shape[1], "]");
    const Shape each_row(rows.shape.begin(), rows.shape.rank() - 1);
    NPU_OP_CHECK(op_, !row_scale || row_scale.shape == each_row, "expected pertoken_scale of shape ", each_row,
                 ", got ", row_scale.shape);
    ConstantProduct product = ConstantProduct::Of(op_, rows, shape_);
    product.weight = packed_.matrix(product.PanelSizes(gated_));
    product.result = result_;
    product.epilogue.column_scale = {static_cast<const float*>(scale_.values().data), 1};
    if (row_scale) product.epilogue.row_scale = {row_scale.as<const float>(), 1};
    return product;
  }

 private:
  enum In : size_t { kWeight = 1, kScale };

  const char* op_;
  size_t row_scale_;
  bool gated_;
  DType result_ = DType::kUndefined;  // of a gated product
  gemm::PackedWeight packed_;
  gemm::PackedScales scale_;
  Shape shape_;
};

}  // namespace npu
