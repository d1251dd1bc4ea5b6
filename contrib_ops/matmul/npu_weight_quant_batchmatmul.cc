// npu_weight_quant_batchmatmul(x, weight, antiquant_scale, antiquant_offset?, quant_scale?, quant_offset?, bias?;
// antiquant_group_size, inner_precise) -> y. The semantics are in npu_weight_quant_batchmatmul.py.
#include "contrib_ops/matmul/npu_weight_quant_batchmatmul.h"

#include "ep/kernels/gemm/packed_scales.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/batches.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/antiquant.h"
#include "ep/kernels/quantization/quantized_weight.h"
#include "ep/kernels/quantization/scale_values.h"

namespace npu {
namespace {

using In = nodes::NPUWeightQuantBatchMatmulV2::In;
using Out = nodes::NPUWeightQuantBatchMatmulV2::Out;

constexpr const char* kOp = "npu_weight_quant_batchmatmul";

// What the launch converts to floats.
struct Values {
  ScaleValues scale, offset, quant_scale, quant_offset;
  void Load() const {
    for (const ScaleValues* each : {&scale, &offset, &quant_scale, &quant_offset}) each->Load();
  }
};

class WeightQuantKernel final : public Kernel {
 public:
  explicit WeightQuantKernel(const KernelInfo& info)
      : group_(info.attributes.Int("antiquant_group_size")), inner_precise_(info.attributes.Int("inner_precise")) {
    if (const auto x = DeclaredShape(info, In::x); x && x->rank() > 0) depth_ = x->back();
    scales_ = DeclaredShape(info, In::antiquant_scale);
    NPU_OP_CHECK(kOp, group_ >= 0, "expected antiquant_group_size of 0 or more, got ", group_);
    NPU_OP_CHECK(kOp, inner_precise_ == 0 || inner_precise_ == 1, "expected inner_precise 0 or 1, got ",
                 inner_precise_);
    NPU_OP_CHECK(kOp, !info.attributes.Has("weight_dtype"), "expected no weight_dtype on this device, got ",
                 info.attributes.Int("weight_dtype"));
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input == In::antiquant_scale) return PackGroups(packed_scale_, constant, stream);
    if (input == In::antiquant_offset) return PackGroups(packed_offset_, constant, stream);
    if (input != In::weight || constant.shape.rank() != 2) return false;
    const int64_t depth = constant.dtype == DType::kInt8
                              ? constant.shape[0]
                              : QuantizedWeight::DeclaredDepth(constant.shape, depth_, scales_);
    if (depth < 0) return false;
    packed_layout_ = QuantizedWeight::Of(kOp, "weight", constant, depth);
    packed_.PackQuantized(kOp, packed_layout_.dtype, packed_layout_.At(constant.data, 0), stream);
    weight_view_ = constant;
    weight_view_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), weight = packed_ ? weight_view_ : ctx.Input(In::weight);
    NPU_OP_CHECK(kOp, x && weight && x.shape.rank() >= 2 && weight.shape.rank() >= 2,
                 "expected x [.., M, K] and weight [.., K, N], got ", x.shape, " and ", weight.shape);
    const QuantizedWeight layout = QuantizedWeight::Of(kOp, "weight", weight, x.shape.back());
    NPU_OP_CHECK(kOp, !packed_ || layout == packed_layout_, "expected x [.., ", packed_layout_.k,
                 "] as the model declares it, got ", x.shape);
    Shape matrices = weight.shape;
    matrices[matrices.rank() - 2] = layout.k;
    matrices[matrices.rank() - 1] = layout.n;
    const MatMulShape s = InferMatMul(kOp, x.shape, matrices);

    const TensorView bias = ctx.Input(In::bias);
    NPU_OP_CHECK(kOp, !bias || bias.shape == Shape{layout.n} || bias.shape == Shape({1, layout.n}),
                 "expected a bias of shape [", layout.n, "] or [1, ", layout.n, "], got ", bias.shape);
    const TensorView quant_scale = ctx.Input(In::quant_scale), quant_offset = ctx.Input(In::quant_offset);
    CheckPerColumn(kOp, "quant_scale", quant_scale, layout.n);
    NPU_OP_CHECK(kOp, !quant_offset || quant_scale, "expected quant_scale with quant_offset, got none");
    NPU_OP_CHECK(kOp, !quant_offset || quant_offset.shape == quant_scale.shape,
                 "expected quant_offset of quant_scale's shape ", quant_scale.shape, ", got ", quant_offset.shape);
    const TensorView scale = packed_scale_ ? packed_scale_.values() : ctx.Input(In::antiquant_scale);
    const TensorView offset = packed_offset_ ? packed_offset_.values() : ctx.Input(In::antiquant_offset);
    CheckAntiquant(kOp, x.dtype, layout, group_, scale, offset);
    NPU_OP_CHECK(kOp, !quant_scale || scale.dtype != DType::kInt64,
                 "expected no quant_scale with an antiquant_scale of 64 bits, got one of ", NameOf(quant_scale.dtype));

    Values values;
    gemm::Dequantization dequantization{
        .scale = scale.data, .offset = offset.data, .dtype = scale.dtype, .group = group_};
    dequantization.scale_panel = packed_scale_.panel();
    dequantization.offset_panel = packed_offset_.panel();
    dequantization.column_stride = scale.elements() == 1 ? 0 : 1;
    dequantization.group_stride = group_ == 0 ? 0 : layout.n;
    dequantization.round_a = inner_precise_ == 1;
    if (scale.dtype == DType::kInt64) {
      values.scale = ScaleValues(ctx, scale);
      values.offset = ScaleValues(ctx, offset);
      dequantization.scale = values.scale.data();
      dequantization.offset = offset ? values.offset.data() : nullptr;
      dequantization.dtype = DType::kFloat32;
    }
    gemm::Epilogue epilogue{.addend = {bias.data, bias.dtype, 0, 1}};
    if (quant_scale) {
      values.quant_scale = ScaleValues(ctx, quant_scale);
      epilogue.output_scale = {values.quant_scale.data(), values.quant_scale.stride()};
      if (quant_offset || quant_scale.dtype == DType::kInt64) {
        values.quant_offset = ScaleValues(ctx, quant_offset ? quant_offset : quant_scale, PackedPart::kOffset);
        epilogue.output_offset = {values.quant_offset.data(), values.quant_offset.stride()};
      }
    }
    const TensorView y = ctx.Output(Out::y, quant_scale ? DType::kInt8 : x.dtype, s.output);
    if (!y || y.elements() == 0) return;
    const bool one_weight = s.b_batches == 1;  // the batch is but more rows
    ctx.Launch(kOp, [this, x, weight, y, s, layout, dequantization, epilogue, values, one_weight] {
      values.Load();
      if (one_weight) {
        const gemm::Matrix rows = MatrixAt(x, 0, s.a_batches * s.m, s.k), right = layout.At(weight.data, 0);
        const gemm::Result c{y.data, y.dtype, s.n};
        if (packed_) {
          gemm::Multiply(rows, packed_.quantized(right, x.dtype, dequantization), c, epilogue);
        } else {
          gemm::Multiply(x.dtype, rows, layout.dtype, right, c, epilogue, dequantization);
        }
        return;
      }
      ForEachEntry(s, [&](int64_t i) {
        const gemm::Result c{y.as<char>() + BytesFor(y.dtype, i * s.m * s.n), y.dtype, s.n};
        gemm::Multiply(x.dtype, MatrixAt(x, s.AIndex(i), s.m, s.k), layout.dtype, layout.At(weight.data, s.BIndex(i)),
                       c, epilogue, dequantization);
      });
    });
  }

 private:
  // Packs scales or offsets [groups, N] of x's type. What is wrong with them is said by Compute.
  bool PackGroups(gemm::PackedScales& to, const TensorView& constant, Stream& stream) const {
    const bool halves = constant.dtype == DType::kFloat16 || constant.dtype == DType::kBFloat16;
    if (group_ == 0 || !halves || constant.shape.rank() != 2 || constant.elements() == 0) return false;
    to.Pack(kOp, constant.dtype, gemm::Matrix::RowMajor(constant.data, constant.shape[0], constant.shape[1]), stream);
    return true;
  }

  int64_t group_, inner_precise_;
  int64_t depth_ = -1;  // of x, when the model tells, as the next
  std::optional<Shape> scales_;
  gemm::PackedWeight packed_;
  gemm::PackedScales packed_scale_, packed_offset_;
  QuantizedWeight packed_layout_;
  TensorView weight_view_;  // type and shape
};

NPU_KERNEL(NPUWeightQuantBatchMatmulV2, WeightQuantKernel);

}  // namespace
}  // namespace npu
