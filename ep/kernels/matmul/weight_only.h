// The constant matrix of a product with npu_weight_quant_batchmatmul's semantics that is joined with what reads it:
// panels of integers, scales and offsets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ep/kernels/gemm/packed_scales.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/constant_product.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/antiquant.h"

namespace npu {

class WeightOnly {
 public:
  static constexpr const char *kGated = "WeightQuantGatedMatMul", *kNormed = "WeightQuantMatMulAddRmsNorm";
  static constexpr size_t kInputs = 3;
  static constexpr DTypeSet kResults{DType::kFloat16, DType::kBFloat16};
  static std::vector<ArgDef> Inputs() {
    return {Input("x", kResults), Input("weight", {DType::kInt8, DType::kInt32}), Input("antiquant_scale", kResults)};
  }
  static std::vector<ArgDef> LastInputs() { return {OptionalInput("antiquant_offset", kResults)}; }
  static std::vector<AttrDef> Attributes(bool /*gated*/) {
    return {IntAttribute("antiquant_group_size", 0), IntAttribute("inner_precise", 0)};
  }
  static std::string WhyUnsupported(const NodeView& node, size_t offset) {
    const bool offsets =
        offset >= node.inputs.size() || node.inputs[offset] == DType::kUndefined || node.constant[offset];
    if (node.constant[kWeight] && node.constant[kScale] && offsets) return "";
    return "a weight, scale or offset that is not constant";
  }

  WeightOnly(const char* op, const KernelInfo& info, size_t offset, bool gated)
      : op_(op),
        offset_(offset),
        gated_(gated),
        group_(info.attributes.Int("antiquant_group_size")),
        inner_precise_(info.attributes.Int("inner_precise")),
        scale_shape_(DeclaredShape(info, kScale)) {
    if (const auto x = DeclaredShape(info, 0); x && x->rank() > 0) depth_ = x->back();
    NPU_OP_CHECK(op, group_ >= 0, "expected antiquant_group_size of 0 or more, got ", group_);
    NPU_OP_CHECK(op, inner_precise_ == 0 || inner_precise_ == 1, "expected inner_precise 0 or 1, got ", inner_precise_);
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) {
    if (input == kWeight) return PackWeight(constant, stream);
    if (input == kScale) return PackValues("antiquant_scale", packed_scale_, constant, stream);
    return input == offset_ && PackValues("antiquant_offset", packed_offset_, constant, stream);
  }

  // Throws "[op] expected …, got …" if the inputs do not fit.
  ConstantProduct Of(OpContext& ctx) const {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(op_, x && packed_ && packed_scale_, "expected x, and a constant weight and antiquant_scale");
    NPU_OP_CHECK(op_, x.shape.rank() >= 2 && x.shape.back() == layout_.k, "expected x [.., M, ", layout_.k, "], got ",
                 x.shape);
    const TensorView &scale = packed_scale_.values(), &offset = packed_offset_.values();
    CheckAntiquant(op_, x.dtype, layout_, group_, scale, offset);
    NPU_OP_CHECK(op_, scale.shape.back() == layout_.n, "expected an antiquant_scale for each of ", layout_.n,
                 " columns, got ", scale.shape);
    gemm::Dequantization from{.scale = scale.data, .offset = offset.data, .dtype = x.dtype, .group = group_};
    from.scale_panel = packed_scale_.panel();
    from.offset_panel = packed_offset_.panel();
    from.round_a = inner_precise_ == 1;
    ConstantProduct product = ConstantProduct::Of(op_, x, {layout_.k, layout_.n});
    product.weight = packed_.quantized(product.PanelSizes(gated_), x.dtype, from);
    product.result = x.dtype;
    return product;
  }

 private:
  enum In : size_t { kWeight = 1, kScale };

  bool PackWeight(const TensorView& constant, Stream& stream) {
    NPU_OP_CHECK(op_, constant.shape.rank() == 2, "expected weight of two axes, got ", constant.shape);
    const int64_t depth = constant.dtype == DType::kInt8
                              ? constant.shape[0]
                              : QuantizedWeight::DeclaredDepth(constant.shape, depth_, scale_shape_);
    NPU_OP_CHECK(op_, depth >= 0, "expected x or antiquant_scale of a declared shape beside packed int4 ",
                 constant.shape, ", got neither");
    layout_ = QuantizedWeight::Of(op_, "weight", constant, depth);
    NPU_OP_CHECK(op_, !gated_ || layout_.n % 2 == 0, "expected a weight of an even number of columns, got ", layout_.n);
    const gemm::Matrix b = layout_.At(constant.data, 0);
    gated_ ? packed_.PackQuantizedGated(op_, layout_.dtype, b, stream)
           : packed_.PackQuantized(op_, layout_.dtype, b, stream);
    return true;
  }

  // One row, or one for each group.
  bool PackValues(const char* name, gemm::PackedScales& to, const TensorView& constant, Stream& stream) const {
    const Shape& shape = constant.shape;
    NPU_OP_CHECK(op_, (shape.rank() == 1 || shape.rank() == 2) && constant.elements() > 0, "expected ", name,
                 " of one or two axes, got ", shape);
    const gemm::Matrix values = gemm::Matrix::RowMajor(constant.data, shape.rank() == 1 ? 1 : shape[0], shape.back());
    gated_ ? to.PackGated(op_, constant.dtype, values, stream) : to.Pack(op_, constant.dtype, values, stream);
    return true;
  }

  const char* op_;
  size_t offset_;
  bool gated_;
  int64_t group_, inner_precise_;
  std::optional<Shape> scale_shape_;
  int64_t depth_ = -1;  // of x, when the model tells
  gemm::PackedWeight packed_;
  gemm::PackedScales packed_scale_, packed_offset_;
  QuantizedWeight layout_;
};

}  // namespace npu
