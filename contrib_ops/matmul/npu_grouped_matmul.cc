// _npu_grouped_matmul(x, weight, bias?, scale?, antiquant_scale?, antiquant_offset?, per_token_scale?, group_list?;
// group_type, group_list_type, act_type, output_dtype) -> y. The semantics are in npu_grouped_matmul.py.
#include "contrib_ops/matmul/npu_grouped_matmul.h"

#include <cstring>

#include "ep/kernels/activation/row_activation.h"
#include "ep/kernels/matmul/group_list.h"
#include "ep/kernels/matmul/grouped_weight.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/scale_values.h"
#include "ep/kernels/quantization/type_code.h"

namespace npu {
namespace {

using In = nodes::NPUGroupedMatmul::In;
using Out = nodes::NPUGroupedMatmul::Out;

constexpr const char* kOp = "npu_grouped_matmul";
// Subtracted from x of int8 in products with int4.
constexpr int32_t kShift = 8;
constexpr int64_t kNone = -1, kRows = 0, kDepth = 2;  // what group_type divides

RowActivation ActivationOf(int64_t act_type) {
  switch (act_type) {
    case 0:
      return nullptr;
    case 1:
      return &ActivateRow<Relu>;
    case 2:
      return &ActivateRow<GeluTanh>;
    case 4:
      return &ActivateRow<FastGelu>;
    case 5:
      return &ActivateRow<Silu>;
    default:
      Fail(ErrorCode::kInvalidArgument, "[", kOp, "] expected act_type 0, 1, 2, 4 or 5, got ", act_type);
  }
}

DType ResultOf(const Attributes& attributes) {
  if (!attributes.Has("output_dtype")) return DType::kUndefined;
  return ElementTypeOf(
      kOp, "output_dtype", attributes.Int("output_dtype"),
      {TypeCode::kFloat32, TypeCode::kFloat16, TypeCode::kBFloat16, TypeCode::kInt8, TypeCode::kInt32});
}

// How x and weight are multiplied.
enum class Scheme { kFloats, kWeightOnly, kInt8, kInt4, kInt8ByInt4 };

const char* TitleOf(Scheme scheme) {
  switch (scheme) {
    case Scheme::kFloats:
      return "x and weight of floats";
    case Scheme::kWeightOnly:
      return "x of floats and weight of integers";
    case Scheme::kInt8:
      return "x and weight of int8";
    case Scheme::kInt4:
      return "x and weight of int4";
    case Scheme::kInt8ByInt4:
      return "x of int8 and weight of int4";
  }
  return "";
}

Scheme SchemeOf(DType x, DType weight) {
  const bool words = weight == DType::kInt32;
  if (gemm::Supports(x) && weight == x) return Scheme::kFloats;
  if (gemm::Supports(x) && (weight == DType::kInt8 || words)) return Scheme::kWeightOnly;
  if (x == DType::kInt8 && weight == DType::kInt8) return Scheme::kInt8;
  if (x == DType::kInt32 && words) return Scheme::kInt4;
  NPU_OP_CHECK(kOp, x == DType::kInt8 && words,
               "expected x and weight of one type of floats, x of floats and weight of int8 or int32, or both of int8 "
               "or int32, got ",
               NameOf(x), " and ", NameOf(weight));
  return Scheme::kInt8ByInt4;
}

// The tensors that a scheme takes beside x and weight: a bit each.
struct Tensors {
  TensorView bias, scale, antiquant_scale, antiquant_offset, per_token_scale;

  void RefuseOther(const char* scheme, unsigned taken, unsigned needed) const {
    const std::pair<const char*, const TensorView*> all[] = {{"bias", &bias},
                                                             {"scale", &scale},
                                                             {"antiquant_scale", &antiquant_scale},
                                                             {"antiquant_offset", &antiquant_offset},
                                                             {"per_token_scale", &per_token_scale}};
    for (unsigned i = 0; i < std::size(all); ++i) {
      const bool present = static_cast<bool>(*all[i].second);
      NPU_OP_CHECK(kOp, !present || ((taken | needed) >> i & 1) != 0, "expected no ", all[i].first, " with ", scheme,
                   ", got one");
      NPU_OP_CHECK(kOp, present || (needed >> i & 1) == 0, "expected ", all[i].first, " with ", scheme, ", got none");
    }
  }
};
constexpr unsigned kBias = 1, kScale = 2, kAntiquantScale = 4, kAntiquantOffset = 8, kPerToken = 16;

void CheckTensors(Scheme scheme, const Tensors& tensors) {
  const char* title = TitleOf(scheme);
  switch (scheme) {
    case Scheme::kFloats:
      return tensors.RefuseOther(title, kBias, 0);
    case Scheme::kWeightOnly:
      return tensors.RefuseOther(title, kBias | kAntiquantOffset, kAntiquantScale);
    case Scheme::kInt8:
      return tensors.RefuseOther(title, kBias | kPerToken, kScale);
    case Scheme::kInt4:
      return tensors.RefuseOther(title, kPerToken, kScale);
    case Scheme::kInt8ByInt4:
      return tensors.RefuseOther(title, kPerToken, kBias | kScale);
  }
}

// The number of blocks of K that have scales of their own.
int64_t BlocksOf(const char* name, const TensorView& values, bool one_matrix, int64_t groups, int64_t k, int64_t n) {
  const Shape& shape = values.shape;
  const int rank = shape.rank();
  if (one_matrix) {
    NPU_OP_CHECK(kOp, shape == Shape{n} || (rank == 2 && shape[1] == n), "expected ", name, " of shape [", n,
                 "] or [blocks, ", n, "], got ", shape);
  } else {
    NPU_OP_CHECK(kOp, shape == Shape({groups, n}) || (rank == 3 && shape[0] == groups && shape[2] == n), "expected ",
                 name, " of shape [", groups, ", ", n, "] or [", groups, ", blocks, ", n, "], got ", shape);
  }
  const int64_t blocks = rank == (one_matrix ? 2 : 3) ? shape[rank - 2] : 1;
  NPU_OP_CHECK(kOp, blocks >= 1 && k % blocks == 0, "expected ", name, " with a number of blocks that divides ", k,
               ", got ", blocks);
  return blocks;
}

// A call after its checks: what the launch needs.
struct Call {
  Scheme scheme = Scheme::kFloats;
  Tensors tensors;
  TensorView x, weight, group_list, y;
  GroupedWeight::Layout layout;
  int64_t m = 0, blocks = 1;  // of K, with scales of their own
  ScaleValues scale, offset;
  bool has_offset = false;
};

class GroupedMatmulKernel final : public Kernel {
 public:
  explicit GroupedMatmulKernel(const KernelInfo& info)
      : group_type_(info.attributes.Int("group_type")),
        list_type_(info.attributes.Int("group_list_type")),
        act_type_(info.attributes.Int("act_type")),
        activation_(ActivationOf(act_type_)),
        result_(ResultOf(info.attributes)) {
    NPU_OP_CHECK(kOp, group_type_ == kNone || group_type_ == kRows || group_type_ == kDepth,
                 "The group type must be -1, 0 or 2, got ", group_type_);
    if (info.input_dtypes.empty()) return;
    x_dtype_ = info.input_dtypes[In::x];
    if (const auto x = DeclaredShape(info, In::x); x && x->rank() > 0 && x->back() >= 0 && x->back() < INT32_MAX)
      depth_ = x->back() * (x_dtype_ == DType::kInt32 ? 8 : 1);
    scales_ = DeclaredShape(info, In::scale);
    if (!scales_) scales_ = DeclaredShape(info, In::antiquant_scale);
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    const int rank = group_type_ == kRows ? 3 : 2;
    if (input != In::weight || group_type_ == kDepth || x_dtype_ == DType::kUndefined || constant.shape.rank() != rank)
      return false;
    const bool words = constant.dtype == DType::kInt32;
    const bool fits =
        constant.dtype == x_dtype_ || words || (constant.dtype == DType::kInt8 && gemm::Supports(x_dtype_));
    const int64_t k =
        words ? QuantizedWeight::DeclaredDepth(constant.shape, depth_, scales_) : constant.shape[rank - 2];
    if (!fits || k < 0) return false;
    weight_.Pack(kOp, constant, GroupedWeight::LayoutOf(kOp, constant, LeftOf(x_dtype_), k), stream);
    weight_view_ = constant;
    weight_view_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    Call call;
    call.x = ctx.Input(In::x);
    call.weight = weight_ ? weight_view_ : ctx.Input(In::weight);
    call.group_list = ctx.Input(In::group_list);
    NPU_OP_CHECK(kOp, call.x && call.weight, "expected the tensors x and weight");
    call.tensors = {ctx.Input(In::bias), ctx.Input(In::scale), ctx.Input(In::antiquant_scale),
                    ctx.Input(In::antiquant_offset), ctx.Input(In::per_token_scale)};
    NPU_OP_CHECK(kOp, result_ != DType::kUndefined || call.x.dtype != DType::kInt32,
                 "expected output_dtype with x of int4 in int32, got none");
    const DType dtype = result_ == DType::kUndefined ? call.x.dtype : result_;
    const int rank = group_type_ == kRows ? 3 : 2;
    NPU_OP_CHECK(kOp,
                 call.weight.shape.rank() == rank &&
                     (call.x.shape.rank() == 2 || (group_type_ == kNone && call.x.shape.rank() > 2)),
                 "expected x of rank ", group_type_ == kNone ? "2 or more" : "2", " and weight of rank ", rank,
                 " with group_type ", group_type_, ", got ", call.x.shape, " and ", call.weight.shape);
    CheckGroupList(call.group_list, group_type_ == kRows ? call.weight.shape[0] : -1);
    if (group_type_ == kDepth) return ComputeGroupsOfDepth(ctx, call, dtype);
    CheckOperands(call, dtype);

    Shape shape = call.x.shape;
    shape[shape.rank() - 1] = call.layout.n;
    call.y = ctx.Output(Out::y, dtype, shape);
    if (!call.y || call.y.elements() == 0) return CheckGroupsOnly(ctx, call);
    const TensorView& scale = call.tensors.scale;
    if (scale) call.scale = ScaleValues(ctx, scale);
    call.has_offset = dtype == DType::kInt8 && (scale.dtype == DType::kInt64 || scale.dtype == DType::kUInt64);
    if (call.has_offset) call.offset = ScaleValues(ctx, scale, PackedPart::kOffset);
    ctx.Launch(kOp, [this, call] { Run(call); });
  }

 private:
  static DType LeftOf(DType x) { return x == DType::kInt32 ? DType::kInt4 : x; }
  GroupListType list_type() const { return static_cast<GroupListType>(list_type_); }

  void CheckGroupList(const TensorView& list, int64_t groups) const {
    NPU_OP_CHECK(kOp, list_type_ >= 0 && list_type_ <= 2, "expected group_list_type 0, 1 or 2, got ", list_type_);
    if (group_type_ == kNone) {
      NPU_OP_CHECK(kOp, !list, "expected no group_list with group_type -1, got one");
      return;
    }
    NPU_OP_CHECK(kOp, list, "expected group_list with group_type ", group_type_, ", got none");
    if (list_type() == GroupListType::kPairs) {
      NPU_OP_CHECK(kOp, group_type_ == kRows, "expected group_list_type 0 or 1 with group_type 2, got 2");
      NPU_OP_CHECK(kOp, list.shape.rank() == 2 && list.shape[1] == 2, "expected group_list of shape [groups, 2], got ",
                   list.shape);
      return;
    }
    NPU_OP_CHECK(kOp, list.shape.rank() == 1 && (groups < 0 || list.shape[0] == groups),
                 "expected group_list of shape [", groups < 0 ? "groups" : Concat(groups), "], got ", list.shape);
  }

  void CheckOperands(Call& call, DType dtype) const {
    const bool one_matrix = group_type_ == kNone;
    const Tensors& tensors = call.tensors;
    const Scheme scheme = call.scheme = SchemeOf(call.x.dtype, call.weight.dtype);
    const char* title = TitleOf(scheme);
    CheckTensors(scheme, tensors);
    int64_t k = call.x.shape.back();
    NPU_OP_CHECK(kOp, scheme != Scheme::kInt4 || !__builtin_mul_overflow(k, 8, &k),
                 "expected a shape whose number of elements fits int64, got ", call.x.shape);
    call.m = call.x.shape.Elements(0, call.x.shape.rank() - 1);
    call.layout = GroupedWeight::LayoutOf(kOp, call.weight, LeftOf(call.x.dtype), k);
    const int64_t groups = call.layout.groups, n = call.layout.n;
    if (tensors.bias) {
      const Shape wanted = one_matrix ? Shape{n} : Shape({groups, n});
      NPU_OP_CHECK(kOp, tensors.bias.shape == wanted || (one_matrix && tensors.bias.shape == Shape({1, n})),
                   "expected bias of shape ", wanted, ", got ", tensors.bias.shape);
      NPU_OP_CHECK(kOp, tensors.bias.dtype != DType::kInt32 || scheme == Scheme::kInt8, "expected bias of floats with ",
                   title, ", got int32");
    }
    if (tensors.per_token_scale) {
      const Shape& shape = tensors.per_token_scale.shape;
      NPU_OP_CHECK(kOp, shape == Shape{call.m} || shape == Shape({call.m, 1}), "expected per_token_scale of shape [",
                   call.m, "] or [", call.m, ", 1], got ", shape);
    }
    NPU_OP_CHECK(
        kOp, dtype != DType::kInt32 || (scheme == Scheme::kInt8 && !tensors.per_token_scale && activation_ == nullptr),
        "expected a result of int32 with x and weight of int8, no per_token_scale and no activation, got it with ",
        title);
    NPU_OP_CHECK(kOp, dtype != DType::kInt8 || scheme == Scheme::kInt8,
                 "expected a result of int8 with x and weight of int8, got it with ", title);
    if (scheme == Scheme::kWeightOnly) {
      call.blocks = BlocksOf("antiquant_scale", tensors.antiquant_scale, one_matrix, groups, k, n);
      NPU_OP_CHECK(kOp, !tensors.antiquant_offset || tensors.antiquant_offset.shape == tensors.antiquant_scale.shape,
                   "expected antiquant_offset of antiquant_scale's shape ", tensors.antiquant_scale.shape, ", got ",
                   tensors.antiquant_offset.shape);
      NPU_OP_CHECK(kOp, !tensors.antiquant_offset || tensors.antiquant_offset.dtype == tensors.antiquant_scale.dtype,
                   "expected antiquant_offset of antiquant_scale's dtype ", NameOf(tensors.antiquant_scale.dtype),
                   ", got ", NameOf(tensors.antiquant_offset.dtype));
    } else if (scheme == Scheme::kInt8) {
      CheckScale(tensors.scale, one_matrix, groups, n);
      NPU_OP_CHECK(kOp, dtype != DType::kInt32 || !tensors.bias || tensors.bias.dtype == DType::kInt32,
                   "expected bias of int32 with a result of int32, got floats");
    } else if (scheme != Scheme::kFloats) {
      call.blocks = BlocksOf("scale", tensors.scale, one_matrix, groups, k, n);
      NPU_OP_CHECK(kOp, call.blocks == 1 || k / call.blocks % 8 == 0,
                   "expected blocks of a multiple of 8 rows of int4, got ", k / call.blocks);
    }
    NPU_OP_CHECK(kOp, !weight_ || call.layout == weight_.layout(), "expected x as the model declares it, got ",
                 call.x.shape);
  }

  static void CheckScale(const TensorView& scale, bool one_matrix, int64_t groups, int64_t n) {
    const Shape& shape = scale.shape;
    if (one_matrix) {
      NPU_OP_CHECK(kOp, shape == Shape{n} || shape == Shape{1} || shape == Shape({1, n}), "expected scale of shape [",
                   n, "] or [1], got ", shape);
      return;
    }
    NPU_OP_CHECK(kOp, shape == Shape({groups, n}) || shape == Shape({groups, 1}) || shape == Shape{groups},
                 "expected scale of shape [", groups, ", ", n, "], [", groups, ", 1] or [", groups, "], got ", shape);
  }

  // Without results the values of group_list are refused all the same.
  void CheckGroupsOnly(OpContext& ctx, const Call& call) const {
    if (group_type_ == kNone) return;
    const int64_t rows = group_type_ == kRows ? call.m : call.x.shape[1];
    const int64_t groups = group_type_ == kRows ? call.layout.groups : 0;
    ctx.Launch(kOp, [list = call.group_list, type = list_type(), rows, groups] {
      ForEachGroup(kOp, list, type, rows, groups, [](int64_t, int64_t, int64_t) {});
    });
  }

  void ComputeGroupsOfDepth(OpContext& ctx, Call& call, DType dtype) const {
    const TensorView &x = call.x, &weight = call.weight;
    NPU_OP_CHECK(kOp, gemm::Supports(x.dtype) && weight.dtype == x.dtype && gemm::Supports(dtype),
                 "expected x, weight and y of floats with group_type 2, got ", NameOf(x.dtype), ", ",
                 NameOf(weight.dtype), " and ", NameOf(dtype));
    call.tensors.RefuseOther("group_type 2", 0, 0);
    NPU_OP_CHECK(kOp, activation_ == nullptr, "expected act_type 0 with group_type 2, got ", act_type_);
    const int64_t m = x.shape[0], k = x.shape[1], n = weight.shape[1];
    NPU_OP_CHECK(kOp, weight.shape[0] == k, "expected weight [", k, ", N], got ", weight.shape);
    const TensorView y = ctx.Output(Out::y, dtype, {call.group_list.shape[0], m, n});
    if (!y || y.elements() == 0) return CheckGroupsOnly(ctx, call);
    ctx.Launch(kOp, [x, weight, y, list = call.group_list, type = list_type(), m, k, n] {
      int64_t group = 0;
      ForEachGroup(kOp, list, type, k, 0, [&](int64_t, int64_t begin, int64_t count) {
        const gemm::Matrix a{x.as<char>() + BytesFor(x.dtype, begin), m, count, k, 1};
        const gemm::Matrix b = gemm::Matrix::RowMajor(weight.as<char>() + BytesFor(x.dtype, begin * n), count, n);
        gemm::Multiply(x.dtype, a, b, {y.as<char>() + BytesFor(y.dtype, group++ * m * n), y.dtype, n});
      });
    });
  }

  void Run(const Call& call) const {
    call.scale.Load();
    if (call.has_offset) call.offset.Load();
    if (group_type_ == kNone) return RunGroup(call, 0, 0, call.m);
    const int64_t end = ForEachGroup(kOp, call.group_list, list_type(), call.m, call.layout.groups,
                                     [&](int64_t group, int64_t begin, int64_t count) {
                                       if (count > 0) RunGroup(call, group, begin, count);
                                     });
    const int64_t row_bytes = static_cast<int64_t>(BytesFor(call.y.dtype, call.layout.n));
    std::memset(call.y.as<char>() + end * row_bytes, 0, static_cast<size_t>((call.m - end) * row_bytes));
  }

  // Rows [begin, begin + count) of y: those of x times matrix `group`.
  void RunGroup(const Call& call, int64_t group, int64_t begin, int64_t count) const {
    const Tensors& tensors = call.tensors;
    const int64_t k = call.layout.k, n = call.layout.n, blocks = call.blocks;
    const char* x = call.x.as<char>();
    const gemm::Matrix a = gemm::Matrix::RowMajor(x + BytesFor(call.layout.left, begin * k), count, k);
    const gemm::Result y{call.y.as<char>() + BytesFor(call.y.dtype, begin * n), call.y.dtype, n};
    const gemm::PerLine<float> tokens{
        tensors.per_token_scale ? tensors.per_token_scale.as<const float>() + begin : nullptr, 1};
    gemm::Epilogue epilogue{.activation = activation_};
    if (tensors.bias) epilogue.AddBias(tensors.bias, group * n);
    if (call.scheme == Scheme::kFloats) return weight_.Multiply(call.layout, call.weight.data, group, a, y, epilogue);
    gemm::Dequantization dequantization{.group = blocks == 1 ? 0 : k / blocks, .group_stride = n, .column_stride = 1};
    if (call.scheme == Scheme::kWeightOnly) {
      const TensorView &scale = tensors.antiquant_scale, &offset = tensors.antiquant_offset;
      const auto at = [&](const TensorView& values) -> const void* {
        return values ? values.as<char>() + BytesFor(values.dtype, group * blocks * n) : nullptr;
      };
      dequantization.scale = at(scale);
      dequantization.offset = at(offset);
      dequantization.dtype = scale.dtype;
      return weight_.Multiply(call.layout, call.weight.data, group, a, y, epilogue, dequantization);
    }
    const int64_t scales = tensors.scale.elements() / call.layout.groups;  // of a group
    if (call.scheme == Scheme::kInt8) {
      const int64_t stride = scales == 1 ? 0 : 1;
      epilogue.column_scale = {call.scale.data() + group * scales, stride};
      epilogue.row_scale = tokens;
      if (call.has_offset) epilogue.output_offset = {call.offset.data() + group * scales, stride};
      return weight_.Multiply(call.layout, call.weight.data, group, a, y, epilogue);
    }
    dequantization.scale = call.scale.data() + group * scales;
    dequantization.dtype = DType::kFloat32;
    if (call.scheme == Scheme::kInt8ByInt4) dequantization.a_zero_point = kShift;
    epilogue.total_scale = tokens;
    weight_.Multiply(call.layout, call.weight.data, group, a, y, epilogue, dequantization);
  }

  int64_t group_type_, list_type_, act_type_;
  RowActivation activation_;
  DType result_;                       // kUndefined: that of x
  DType x_dtype_ = DType::kUndefined;  // when the model tells, as the next two
  int64_t depth_ = -1;
  std::optional<Shape> scales_;
  GroupedWeight weight_;
  TensorView weight_view_;  // type and shape
};

NPU_KERNEL(NPUGroupedMatmul, GroupedMatmulKernel);

}  // namespace
}  // namespace npu
