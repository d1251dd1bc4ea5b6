// The constant matrix of floats of a product that is joined with what reads it.
#pragma once

#include <string>
#include <vector>

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/constant_product.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {

class FloatWeight {
 public:
  static constexpr const char *kGated = "GatedMatMul", *kNormed = "MatMulAddRmsNorm";
  static constexpr size_t kInputs = 2;
  static constexpr DTypeSet kResults = kFloats;
  static std::vector<ArgDef> Inputs() { return {Input("A", kFloats), Input("B", kFloats)}; }
  static std::vector<ArgDef> LastInputs() { return {}; }
  static std::vector<AttrDef> Attributes(bool /*gated*/) { return {}; }
  static std::string WhyUnsupported(const NodeView& node, size_t /*last*/) {
    return node.constant[1] ? "" : "a B that is not constant";
  }

  FloatWeight(const char* op, const KernelInfo& info, size_t /*last*/, bool gated)
      : op_(op), gated_(gated), packed_(info.float32_products) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) {
    if (input != 1) return false;
    const Shape& shape = constant.shape;
    if (gated_) {
      NPU_OP_CHECK(op_, shape.rank() == 2 && shape[1] % 2 == 0,
                   "expected a matrix B of an even number of columns, got ", shape);
      packed_.PackGated(op_, constant.dtype, gemm::Matrix::RowMajor(constant.data, shape[0], shape[1]), stream);
    } else {
      packed_.Pack(op_, constant, stream);
    }
    shape_ = shape;
    return true;
  }

  // Throws "[op] expected …, got …" if the inputs do not fit.
  ConstantProduct Of(OpContext& ctx) const {
    const TensorView a = ctx.Input(0);
    NPU_OP_CHECK(op_, a && packed_, "expected the input A and a constant B");
    ConstantProduct product = ConstantProduct::Of(op_, a, shape_);
    product.weight = packed_.matrix(product.PanelSizes(gated_));
    product.result = a.dtype;
    return product;
  }

 private:
  const char* op_;
  bool gated_;
  gemm::PackedWeight packed_;
  Shape shape_;
};

}  // namespace npu
