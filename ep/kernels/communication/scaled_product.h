// What npu_all_gather_base_mm and npu_mm_reduce_scatter_base share: a product of floats, or one of int8 with scales.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "ep/kernels/communication/rank_group.h"
#include "ep/kernels/communication/rank_product.h"
#include "ep/kernels/communication/unused_arguments.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/scale_values.h"
#include "ep/kernels/quantization/type_code.h"

namespace npu {

// The attributes that both have.
struct ScaledForm {
  DType left = DType::kUndefined;    // of x1, if the model tells
  DType result = DType::kUndefined;  // as output_dtype names it

  ScaledForm() = default;
  ScaledForm(const char* op, const KernelInfo& info, size_t x1)
      : left(info.input_dtypes.empty() ? DType::kUndefined : info.input_dtypes[x1]) {
    CheckUnused(op, info.attributes, "comm_turn", 0);
    CheckCommMode(op, info.attributes);
    if (info.attributes.Has("output_dtype"))
      result = ElementTypeOf(op, "output_dtype", info.attributes.Int("output_dtype"),
                             {TypeCode::kFloat16, TypeCode::kBFloat16});
  }
};

struct ScaledOperands {
  TensorView x1, x2, bias, x1_scale, x2_scale;
  DType result = DType::kUndefined;

  int64_t m() const { return x1.shape[0]; }
  int64_t k() const { return x1.shape[1]; }
  int64_t n() const { return x2.shape[1]; }

  // Throws for what does not fit together, and sets the type of the result.
  void Check(const char* op, const ScaledForm& form) {
    NPU_OP_CHECK(op, x1 && x2 && x1.shape.rank() == 2 && x2.shape.rank() == 2 && k() == x2.shape[0],
                 "expected x1 [M, K] and x2 [K, N], got ", x1.shape, " and ", x2.shape);
    NPU_OP_CHECK(op, x1.dtype == x2.dtype, "expected x2 of x1's dtype ", NameOf(x1.dtype), ", got ", NameOf(x2.dtype));
    if (x1.dtype != DType::kInt8) {
      NPU_OP_CHECK(op, !x1_scale, "expected no x1_scale with x1 of floats, got one");
      NPU_OP_CHECK(op, !x2_scale, "expected no x2_scale with x1 of floats, got one");
      NPU_OP_CHECK(op, form.result == DType::kUndefined, "expected no output_dtype with x1 of floats, got ",
                   NameOf(form.result));
      CheckBias(op, {x1.dtype});
      result = x1.dtype;
      return;
    }
    NPU_OP_CHECK(op, x2_scale, "expected x2_scale with x1 of int8, got none");
    CheckPerColumn(op, "x2_scale", x2_scale, n());
    NPU_OP_CHECK(op, !x1_scale || x1_scale.shape == Shape{m()} || x1_scale.shape == Shape({m(), 1}),
                 "expected x1_scale of shape [", m(), "] or [", m(), ", 1], got ", x1_scale.shape);
    const bool packed = x2_scale.dtype == DType::kInt64;
    NPU_OP_CHECK(op, !packed || form.result != DType::kBFloat16,
                 "expected output_dtype float16 with an x2_scale of int64, got ", NameOf(form.result));
    CheckBias(op, {DType::kFloat16, DType::kBFloat16});
    result = packed ? DType::kFloat16 : form.result == DType::kUndefined ? DType::kBFloat16 : form.result;
  }

 private:
  void CheckBias(const char* op, std::initializer_list<DType> allowed) const {
    if (!bias) return;
    NPU_OP_CHECK(op, bias.shape == Shape{n()}, "expected a bias of shape [", n(), "], got ", bias.shape);
    std::string names;
    for (const DType dtype : allowed) names += Concat(names.empty() ? "" : " or ", NameOf(dtype));
    NPU_OP_CHECK(op, std::find(allowed.begin(), allowed.end(), bias.dtype) != allowed.end(),
                 "expected a bias of dtype ", names, ", got ", NameOf(bias.dtype));
  }
};

// What both kernels have: the group, the attributes and the weight, which is packed once. `N` names the node's inputs.
template <class N>
class ScaledNode {
 public:
  ScaledNode(const char* op, const KernelInfo& info)
      : op_(op), ranks_(op, info, "hcom", "world_size"), form_(op, info, N::In::self) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) {
    return input == N::In::x2 && weight_.Pack(op_, form_.left, constant, stream);
  }
  std::shared_ptr<Communicator> FindGroup(OpContext& ctx) const { return ranks_.Find(ctx); }
  // The operands, checked, for all ranks, with what `check` adds.
  template <class F>
  ScaledOperands Operands(OpContext& ctx, const std::shared_ptr<Communicator>& group, F&& check) const {
    return CheckForAll(ctx, op_, group, [&] {
      ScaledOperands given{ctx.Input(N::In::self), weight_.Of(ctx, N::In::x2), ctx.Input(N::In::bias),
                           ctx.Input(N::In::x1_scale), ctx.Input(N::In::x2_scale)};
      given.Check(op_, form_);
      check(given);
      return given;
    });
  }
  const RankWeight& weight() const { return weight_; }

 private:
  const char* op_;
  RankGroup ranks_;
  ScaledForm form_;
  RankWeight weight_;
};

// The product of a call, whose scales are read in the launch.
class ScaledProduct {
 public:
  ScaledProduct(OpContext& ctx, const ScaledOperands& given) : bias_(given.bias) {
    product.left = given.x1.dtype;
    product.a = gemm::Matrix::RowMajor(given.x1.data, given.m(), given.k());
    product.b = given.x2;
    if (given.x1.dtype != DType::kInt8) {
      if (bias_) product.epilogue.AddBias(bias_, 0);
      return;
    }
    columns_ = ScaleValues(ctx, given.x2_scale);
    product.epilogue.column_scale = {columns_.data(), columns_.stride()};
    product.epilogue.total_scale = {given.x1_scale.as<float>(), 1};
    if (!bias_) return;
    scaled_bias_ = static_cast<float*>(ctx.Workspace(static_cast<size_t>(bias_.elements()) * sizeof(float)));
    product.epilogue.addend = {scaled_bias_, DType::kFloat32, 0, 1};
  }

  // In the launch, before it multiplies.
  void Load() const {
    columns_.Load();
    if (scaled_bias_ == nullptr) return;
    ConvertToFloats(bias_, scaled_bias_);
    for (int64_t i = 0; i < bias_.elements(); ++i) scaled_bias_[i] *= columns_.data()[i * columns_.stride()];
  }

  RankProduct product;

 private:
  TensorView bias_;
  ScaleValues columns_;
  float* scaled_bias_ = nullptr;  // of int8: the sum is scaled with it
};

}  // namespace npu
