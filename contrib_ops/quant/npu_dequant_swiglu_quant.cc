// npu_dequant_swiglu_quant(x, weight_scale?, activation_scale?, bias?, quant_scale?, quant_offset?, group_index?; ..)
// -> out, scale. The semantics are in npu_dequant_swiglu_quant.py.
#include "contrib_ops/quant/npu_dequant_swiglu_quant.h"

#include <bit>

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/extremes.h"
#include "ep/kernels/quantization/groups.h"
#include "ep/kernels/quantization/swiglu_quant.h"
#include "ep/kernels/quantization/type_code.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUDequantSwigluQuant::In;
using Out = nodes::NPUDequantSwigluQuant::Out;

constexpr const char* kOp = "npu_dequant_swiglu_quant";
constexpr float kTop = 127.0f;

struct Call {
  TensorView x, weight_scale, activation_scale, bias, quant_scale, quant_offset, counts;
  int64_t rows = 0, half = 0, groups = 0;
  SwigluForm form;
  bool interleaved = false, activates_left = false, dynamic = false;
  Rounding rounding = Rounding::kHalfEven;
  int64_t* ends = nullptr;  // of the groups, checked
  int8_t* out = nullptr;
  float* scale = nullptr;
};

// A value for each column or one for all of them, in the row of a group.
class GroupRow {
 public:
  GroupRow(const TensorView& values, int64_t group, int64_t groups, float absent)
      : values_(values), absent_(absent), length_(values ? values.elements() / groups : 1), at_(group * length_) {}
  const float* Load(int64_t column, int64_t count) {
    if (!values_) return &absent_;
    return length_ == 1 ? block_.Load(values_, at_, 1) : block_.Load(values_, at_ + column, count);
  }
  int64_t stride() const { return length_ == 1 ? 0 : 1; }

 private:
  const TensorView& values_;
  float absent_;
  int64_t length_, at_;
  FloatBlock block_;
};

// Dequantises columns of a row.
class Dequantizer {
 public:
  Dequantizer(const Call& call, int64_t row, int64_t group)
      : c_(call),
        row_at_(row * 2 * call.half),
        group_at_(group * 2 * call.half),
        token_(call.activation_scale ? call.activation_scale.as<const float>()[row] : 1.0f) {}

  const float* Load(int64_t column, int64_t count) {
    if (c_.x.dtype != DType::kInt32) return block_.Load(c_.x, row_at_ + column, count);
    const bool adds_integers = c_.bias && c_.bias.dtype == DType::kInt32;
    AddAsFloats(c_.x.as<const int32_t>() + row_at_ + column,
                adds_integers ? c_.bias.as<const int32_t>() + group_at_ + column : nullptr, values_, count);
    const float* weight = c_.weight_scale ? c_.weight_scale.as<const float>() + group_at_ + column : nullptr;
    const float* bias = c_.bias && !adds_integers ? block_.Load(c_.bias, group_at_ + column, count) : nullptr;
    ScaleInPlace(values_, weight, token_, bias, count);
    return values_;
  }

 private:
  const Call& c_;
  int64_t row_at_, group_at_;
  float token_;
  FloatBlock block_;  // of x or of the bias
  alignas(64) float values_[kRowBlock];
};

// SwiGLU of a row.
void Activate(const Call& c, int64_t row, int64_t group, float* s) {
  if (c.interleaved) {
    Dequantizer pairs(c, row, group);
    ForEachBlock(2 * c.half, [&](int64_t at, int64_t n) {
      const float* v = pairs.Load(at, n);
      Swiglu(c.form, v, v + 1, 2, s + at / 2, n / 2);
    });
    return;
  }
  Dequantizer gates(c, row, group), values(c, row, group);
  const int64_t gate = c.activates_left ? 0 : c.half, value = c.half - gate;
  ForEachBlock(c.half, [&](int64_t at, int64_t n) {
    Swiglu(c.form, gates.Load(gate + at, n), values.Load(value + at, n), 1, s + at, n);
  });
}

void RunRow(const Call& c, int64_t row, float* s) {
  int8_t* out = c.out ? c.out + row * c.half : nullptr;
  const int64_t groups = std::max<int64_t>(c.groups, 1), group = c.groups ? GroupOf(c.ends, c.groups, row) : 0;
  if (group == groups) {
    if (out) std::fill_n(out, c.half, int8_t{0});
    if (c.scale) c.scale[row] = 0.0f;
    return;
  }
  Activate(c, row, group, s);
  GroupRow scales(c.quant_scale, group, groups, 1.0f), offsets(c.quant_offset, group, groups, 0.0f);
  uint32_t most = 0;
  ForEachBlock(c.half, [&](int64_t at, int64_t n) {
    if (!c.dynamic) {
      if (c.quant_scale || c.quant_offset)
        DivideInPlace(s + at, scales.Load(at, n), scales.stride(), offsets.Load(at, n), offsets.stride(), n);
      return;
    }
    if (c.quant_scale) {
      const float* factors = scales.Load(at, n);
      MultiplyInPlace(s + at, factors, n);
    }
    most = MaxMagnitudeBits(s + at, n, most);
  });
  const float largest = std::bit_cast<float>(most);
  if (c.scale) c.scale[row] = c.dynamic ? largest / kTop : 0.0f;
  if (out) RoundToInt8(c.rounding, s, c.dynamic ? kTop / largest : 1.0f, out, c.half);
}

void Run(const Call& c) {
  if (c.counts) CheckCounts(kOp, c.counts.as<const int64_t>(), c.groups, c.rows, c.ends);
  ParallelFor(c.rows, RowGrain(2 * c.half), [&c](int64_t begin, int64_t end) {
    RowScratch s(c.half);
    for (int64_t row = begin; row < end; ++row) RunRow(c, row, s.values());
  });
}

// Values per column, of each group if there are any.
void CheckColumns(const char* name, const TensorView& values, int64_t groups, int64_t columns, bool one_per_group) {
  if (!values) return;
  const Shape lead = groups == 0 ? Shape{columns} : Shape{groups, columns};
  const Shape second = groups == 0 ? Shape{1, columns} : Shape{groups};
  const Shape third{1};
  const bool has_second = groups == 0 || one_per_group, has_third = groups == 0 && one_per_group;
  if (values.shape == lead || (has_second && values.shape == second) || (has_third && values.shape == third)) return;
  const std::string rest = (has_second ? Concat(" or ", second) : "") + (has_third ? Concat(" or ", third) : "");
  Fail(ErrorCode::kInvalidArgument, "[", kOp, "] expected ", name, " of shape ", lead, rest, ", got ", values.shape);
}

class DequantSwigluQuantKernel final : public Kernel {
 public:
  explicit DequantSwigluQuantKernel(const KernelInfo& info)
      : swiglu_mode_(info.attributes.Int("swiglu_mode")),
        quant_mode_(info.attributes.Int("quant_mode")),
        round_mode_(info.attributes.Int("round_mode", 0)),
        activate_dim_(info.attributes.Int("activate_dim", -1)),
        activates_left_(info.attributes.Int("activate_left") != 0),
        form_{.clamps = swiglu_mode_ != 0,
              .limit = static_cast<float>(info.attributes.Float("clamp_limit")),
              .alpha = static_cast<float>(info.attributes.Float("glu_alpha")),
              .bias = static_cast<float>(info.attributes.Float("glu_bias"))} {
    if (info.attributes.Has("dst_type"))
      QuantizedTypeOf(kOp, "dst_type", info.attributes.Int("dst_type"), {{TypeCode::kInt8, QuantizedType::kInt8}});
    NPU_OP_CHECK(kOp, quant_mode_ == 0 || quant_mode_ == 1, "expected quant_mode 0 or 1, got ", quant_mode_);
    NPU_OP_CHECK(kOp, round_mode_ >= 0 && round_mode_ <= 4, "expected round_mode in [0, 4], got ", round_mode_);
    NPU_OP_CHECK(kOp, swiglu_mode_ >= 0 && swiglu_mode_ <= 2, "expected swiglu_mode 0, 1 or 2, got ", swiglu_mode_);
  }

  void Compute(OpContext& ctx) const override {
    Call c;
    c.x = ctx.Input(In::x);
    NPU_OP_CHECK(kOp, c.x, "expected the tensor x");
    const Shape& shape = c.x.shape;
    const int rank = shape.rank();
    NPU_OP_CHECK(kOp, activate_dim_ == -1 || activate_dim_ == rank - 1,
                 "expected activate_dim to be the last axis, -1 or ", rank - 1, ", got ", activate_dim_);
    NPU_OP_CHECK(kOp, rank >= 2 && shape.back() > 0 && shape.back() % 2 == 0, "expected x [.., 2 H] with H > 0, got ",
                 shape);
    c.half = shape.back() / 2;
    c.rows = shape.Elements(0, rank - 1);
    c.counts = ctx.Input(In::group_index);
    if (c.counts) {
      NPU_OP_CHECK(kOp, c.counts.shape.rank() == 1 && c.counts.shape[0] > 0,
                   "expected group_index [G] with G > 0, got ", c.counts.shape);
      c.groups = c.counts.shape[0];
    }
    c.weight_scale = ctx.Input(In::weight_scale);
    c.activation_scale = ctx.Input(In::activation_scale);
    c.bias = ctx.Input(In::bias);
    c.quant_scale = ctx.Input(In::quant_scale);
    c.quant_offset = ctx.Input(In::quant_offset);
    CheckTensors(c);

    Shape result = shape, lead;
    result[rank - 1] = c.half;
    for (int i = 0; i + 1 < rank; ++i) lead.push_back(shape[i]);
    c.out = ctx.Output(Out::out, DType::kInt8, result).as<int8_t>();
    c.scale = ctx.Output(Out::scale, DType::kFloat32, lead).as<float>();
    if (c.counts) c.ends = static_cast<int64_t*>(ctx.Workspace(static_cast<size_t>(c.groups) * sizeof(int64_t)));
    c.form = form_;
    c.interleaved = swiglu_mode_ == 1;
    c.activates_left = activates_left_;
    c.dynamic = quant_mode_ == 1;
    c.rounding = static_cast<Rounding>(round_mode_);
    ctx.Launch(kOp, [c] { Run(c); });
  }

 private:
  void CheckTensors(const Call& c) const {
    const auto only_with_int32 = [&](const char* name, const TensorView& values) {
      NPU_OP_CHECK(kOp, !values || c.x.dtype == DType::kInt32, "expected ", name, " only with x of int32, got x of ",
                   NameOf(c.x.dtype), "; multiply x beforehand");
    };
    only_with_int32("weight_scale", c.weight_scale);
    only_with_int32("activation_scale", c.activation_scale);
    only_with_int32("bias", c.bias);
    CheckColumns("weight_scale", c.weight_scale, c.groups, 2 * c.half, false);
    CheckColumns("bias", c.bias, c.groups, 2 * c.half, false);
    const Shape& tokens = c.activation_scale.shape;
    NPU_OP_CHECK(kOp, !c.activation_scale || tokens == Shape{c.rows} || tokens == Shape({c.rows, 1}),
                 "expected activation_scale of shape [", c.rows, "] or [", c.rows, ", 1], got ", tokens);
    CheckColumns("quant_scale", c.quant_scale, c.groups, c.half, quant_mode_ == 0);
    NPU_OP_CHECK(kOp, !c.quant_offset || quant_mode_ == 0,
                 "expected quant_offset only with quant_mode 0, got quant_mode 1");
    CheckColumns("quant_offset", c.quant_offset, c.groups, c.half, true);
    NPU_OP_CHECK(kOp, !c.bias || !c.counts || quant_mode_ == 0,
                 "expected no bias with group_index and quant_mode 1, got one");
  }

  int64_t swiglu_mode_, quant_mode_, round_mode_, activate_dim_;
  bool activates_left_;
  SwigluForm form_;
};

NPU_KERNEL(NPUDequantSwigluQuant, DequantSwigluQuantKernel);

}  // namespace
}  // namespace npu
