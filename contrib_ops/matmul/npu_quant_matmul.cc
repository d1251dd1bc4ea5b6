// npu_quant_matmul(x1, x2, scale, offset?, pertoken_scale?, bias?; output_dtype, x1_dtype, x2_dtype, group_sizes) -> y.
// The semantics are in npu_quant_matmul.py.
#include "contrib_ops/matmul/npu_quant_matmul.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/batches.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/quantized_weight.h"
#include "ep/kernels/quantization/scale_values.h"
#include "ep/kernels/quantization/type_code.h"

namespace npu {
namespace {

using In = nodes::NPUQuantMatmul::In;
using Out = nodes::NPUQuantMatmul::Out;

constexpr const char* kOp = "npu_quant_matmul";
// Subtracted from x1 of int8 in products with int4.
constexpr int32_t kShift = 8;

DType ResultOf(const Attributes& attributes) {
  return ElementTypeOf(kOp, "output_dtype", attributes.Int("output_dtype", static_cast<int64_t>(TypeCode::kInt8)),
                       {TypeCode::kInt8, TypeCode::kFloat16, TypeCode::kBFloat16, TypeCode::kInt32});
}

std::optional<QuantizedType> OperandOf(const Attributes& attributes, const char* name) {
  if (!attributes.Has(name)) return std::nullopt;
  return QuantizedTypeOf(kOp, name, attributes.Int(name),
                         {{TypeCode::kInt8, QuantizedType::kInt8}, {TypeCode::kInt4, QuantizedType::kInt4}});
}

int64_t GroupLengthOf(const Attributes& attributes) {
  const std::vector<int64_t> sizes = attributes.Ints("group_sizes");
  if (sizes.empty()) return 0;
  const bool known = sizes.size() == 3 && sizes[0] >= 0 && sizes[0] <= 1 && sizes[1] >= 0 && sizes[1] <= 1 &&
                     sizes[2] >= 0 && sizes[2] % 8 == 0;
  NPU_OP_CHECK(kOp, known, "expected group_sizes [0, 0, G] with G a multiple of 8 or 0, got ", Shape(sizes));
  return sizes[2];
}

// `view` with its last axis in int4, of which a word has eight.
Shape Unpacked(const TensorView& view) {
  Shape shape = view.shape;
  NPU_OP_CHECK(kOp, view.dtype != DType::kInt32 || !__builtin_mul_overflow(shape.back(), 8, &shape[shape.rank() - 1]),
               "expected a shape whose number of elements fits int64, got ", view.shape);
  return shape;
}

// A call after its checks: what the launch needs.
struct Call {
  TensorView x1, x2, bias, y;
  MatMulShape s;
  DType left = DType::kInt8;  // of x1's elements
  QuantizedWeight layout;
  ScaleValues scale, offset;
  gemm::PerLine<float> tokens;
  float* negated = nullptr;  // the offset of groups, of which a sum with x2 is taken
  bool has_offset = false, bias_per_entry = false, tokens_per_entry = false;
};

class QuantMatmulKernel final : public Kernel {
 public:
  explicit QuantMatmulKernel(const KernelInfo& info)
      : result_(ResultOf(info.attributes)),
        left_(OperandOf(info.attributes, "x1_dtype")),
        right_(OperandOf(info.attributes, "x2_dtype")) {
    for (const char* name : {"pertoken_scale_dtype", "scale_dtype"})
      NPU_OP_CHECK(kOp, !info.attributes.Has(name), "expected no ", name, " on this device, got ",
                   info.attributes.Int(name));
    group_ = GroupLengthOf(info.attributes);
    const std::optional<Shape> x1 = DeclaredShape(info, In::x1), scale = DeclaredShape(info, In::scale);
    int64_t declared = -1;
    if (group_ == 0 && x1 && x1->rank() > 0) declared = x1->back();
    if (group_ != 0 && scale && scale->rank() > 0) declared = (*scale)[0];
    if (declared >= 0 && declared < INT32_MAX) words_depth_ = declared * (group_ == 0 ? 8 : group_);
    scales_ = scale;
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != In::x2 || constant.shape.rank() != 2) return false;
    const bool of_int8 = constant.dtype == DType::kInt8;
    const int64_t depth =
        of_int8 ? constant.shape[0] : QuantizedWeight::DeclaredDepth(constant.shape, words_depth_, scales_);
    if (depth < 0 || (of_int8 && group_ != 0)) return false;
    packed_layout_ = QuantizedWeight::Of(kOp, "x2", constant, depth);
    const gemm::Matrix matrix = packed_layout_.At(constant.data, 0);
    group_ == 0 ? packed_.Pack(kOp, packed_layout_.dtype, matrix, stream)
                : packed_.PackQuantized(kOp, packed_layout_.dtype, matrix, stream);
    x2_view_ = constant;
    x2_view_.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    Call call;
    call.x1 = ctx.Input(In::x1);
    call.x2 = packed_ ? x2_view_ : ctx.Input(In::x2);
    CheckOperands(ctx, call.x1, call.x2);
    call.left = call.x1.dtype == DType::kInt32 ? DType::kInt4 : DType::kInt8;
    const Shape rows = Unpacked(call.x1);
    call.layout = QuantizedWeight::Of(kOp, "x2", call.x2, rows.back());
    NPU_OP_CHECK(kOp, !packed_ || call.layout == packed_layout_, "expected x1 and x2 with K of ", packed_layout_.k,
                 " as the model declares it, got ", call.x1.shape, " and ", call.x2.shape);
    Shape columns = call.x2.shape;
    columns[columns.rank() - 2] = call.layout.k;
    columns[columns.rank() - 1] = call.layout.n;
    const MatMulShape& s = call.s = InferMatMul(kOp, rows, columns);

    const TensorView scale = ctx.Input(In::scale), offset = ctx.Input(In::offset);
    CheckScaleAndOffset(call, scale, offset);
    const TensorView tokens = ctx.Input(In::pertoken_scale);
    const Shape every_row(rows.begin(), rows.rank() - 1);
    call.tokens_per_entry = call.x2.shape.rank() == 2 && tokens.shape == every_row;
    NPU_OP_CHECK(kOp, !tokens || call.tokens_per_entry || tokens.shape == Shape{s.m} || tokens.shape == Shape({s.m, 1}),
                 "expected pertoken_scale of shape [", s.m, "], [", s.m, ", 1] or, with a matrix x2, ", every_row,
                 ", got ", tokens.shape);
    NPU_OP_CHECK(kOp, !tokens || result_ != DType::kInt32,
                 "expected no pertoken_scale with a result of int32, got one");
    call.bias = ctx.Input(In::bias);
    CheckBias(call);

    call.y = ctx.Output(Out::y, result_, s.output);
    if (!call.y || call.y.elements() == 0) return;
    call.scale = ScaleValues(ctx, scale);
    call.has_offset = offset || (result_ == DType::kInt8 && scale.dtype == DType::kInt64);
    if (call.has_offset) call.offset = ScaleValues(ctx, offset ? offset : scale, PackedPart::kOffset);
    call.tokens = {tokens.as<float>(), 1};
    call.bias_per_entry = call.bias.shape.rank() == 3;
    if (group_ != 0 && call.left == DType::kInt4 && offset)
      call.negated = static_cast<float*>(ctx.Workspace(static_cast<size_t>(offset.elements()) * sizeof(float)));
    ctx.Launch(kOp, [this, call] { Run(call); });
  }

 private:
  void CheckOperands(OpContext& ctx, const TensorView& x1, const TensorView& x2) const {
    NPU_OP_CHECK(kOp, !ctx.Input(In::y_scale), "expected no y_scale on this device, got one");
    NPU_OP_CHECK(kOp, x1 && x2 && x1.shape.rank() >= 2 && x2.shape.rank() >= 2,
                 "expected x1 [.., M, K] and x2 [.., K, N], got ", x1.shape, " and ", x2.shape);
    CheckNamed("x1", x1, left_);
    CheckNamed("x2", x2, right_);
    const DType wanted = x1.dtype == DType::kInt32 || group_ != 0 ? DType::kInt32 : DType::kInt8;
    NPU_OP_CHECK(kOp, x2.dtype == wanted, "expected x2 of ", NameOf(wanted), " with x1 of ", NameOf(x1.dtype),
                 " and groups of ", group_, " rows, got ", NameOf(x2.dtype));
  }

  static void CheckNamed(const char* name, const TensorView& x, std::optional<QuantizedType> named) {
    NPU_OP_CHECK(kOp, !named || x.dtype == StorageOf(*named), "expected ", name, " of ", NameOf(StorageOf(*named)),
                 " for ", name, "_dtype ", NameOf(*named), ", got ", NameOf(x.dtype));
  }

  void CheckScaleAndOffset(const Call& call, const TensorView& scale, const TensorView& offset) const {
    const int64_t k = call.layout.k, n = call.layout.n;
    NPU_OP_CHECK(kOp, scale, "expected the tensor scale");
    if (group_ == 0) {
      CheckPerColumn(kOp, "scale", scale, n);
      NPU_OP_CHECK(kOp, !offset || result_ == DType::kInt8,
                   "expected offset only with a result of int8 or groups, got ", NameOf(result_));
      return CheckPerColumn(kOp, "offset", offset, n);
    }
    NPU_OP_CHECK(kOp, k % group_ == 0 && scale.shape == Shape({k / group_, n}), "expected scale of shape [", k, " / ",
                 group_, ", ", n, "], groups of ", group_, " rows, got ", scale.shape);
    NPU_OP_CHECK(kOp, result_ == DType::kFloat16 || result_ == DType::kBFloat16,
                 "expected a result of float16 or bfloat16 with groups, got ", NameOf(result_));
    if (call.left == DType::kInt8) {
      NPU_OP_CHECK(kOp, offset && offset.shape == Shape{n}, "expected offset of shape [", n,
                   "] with x1 of int8 and groups, got ", offset ? Concat(offset.shape) : "none");
    } else {
      NPU_OP_CHECK(kOp, !offset || offset.shape == scale.shape, "expected offset of scale's shape ", scale.shape,
                   ", got ", offset.shape);
    }
  }

  void CheckBias(const Call& call) const {
    const TensorView& bias = call.bias;
    if (!bias) return;
    const int64_t n = call.s.n;
    const bool may_vary = call.s.batch.rank() == 1;
    const Shape each = may_vary ? Shape({call.s.batch[0], 1, n}) : Shape{n};
    NPU_OP_CHECK(kOp, bias.shape == Shape{n} || bias.shape == each, "expected bias of shape ", Shape{n},
                 may_vary ? Concat(" or ", each) : "", ", got ", bias.shape);
    NPU_OP_CHECK(kOp, group_ == 0, "expected no bias with groups, got one");
    NPU_OP_CHECK(kOp, result_ != DType::kInt32 || bias.dtype == DType::kInt32,
                 "expected bias of int32 with a result of int32, got ", NameOf(bias.dtype));
  }

  void Run(const Call& call) const {
    call.scale.Load();
    if (call.has_offset) call.offset.Load();
    if (call.negated)
      std::transform(call.offset.data(), call.offset.data() + call.offset.elements(), call.negated, std::negate());
    const MatMulShape& s = call.s;
    // With one weight the batch is but more rows, unless something differs from matrix to matrix.
    const bool repeats = s.a_batches > 1 && ((call.tokens.data && !call.tokens_per_entry) || call.bias_per_entry);
    if (s.b_batches == 1 && !repeats && !(call.bias_per_entry && s.batches > 1))
      return RunEntry(call, MatrixAt(AsOperand(call), 0, s.a_batches * s.m, s.k), 0, 0);
    ForEachEntry(s,
                 [&](int64_t i) { RunEntry(call, MatrixAt(AsOperand(call), s.AIndex(i), s.m, s.k), s.BIndex(i), i); });
  }

  // x1 as elements of its type.
  static TensorView AsOperand(const Call& call) {
    TensorView view = call.x1;
    view.dtype = call.left;
    return view;
  }

  // Matrix `entry` of the result: rows * weight.
  void RunEntry(const Call& call, const gemm::Matrix& rows, int64_t weight, int64_t entry) const {
    const int64_t first = entry * call.s.m * call.s.n;
    const gemm::Matrix right = call.layout.At(call.x2.data, weight);
    const gemm::Result y{call.y.as<char>() + BytesFor(result_, first), result_, call.s.n};
    gemm::PerLine<float> tokens = call.tokens;
    if (call.tokens_per_entry) tokens.data += entry * call.s.m;
    if (group_ != 0) return MultiplyGroups(call, rows, right, tokens, y);
    gemm::Epilogue epilogue;
    if (call.bias) epilogue.AddBias(call.bias, call.bias_per_entry ? entry * call.s.n : 0);
    epilogue.column_scale = {call.scale.data(), call.scale.stride()};
    epilogue.row_scale = tokens;
    if (call.has_offset) epilogue.output_offset = {call.offset.data(), call.offset.stride()};
    Multiply(call, rows, right, y, epilogue);
  }

  void MultiplyGroups(const Call& call, const gemm::Matrix& rows, const gemm::Matrix& right,
                      const gemm::PerLine<float>& tokens, const gemm::Result& y) const {
    gemm::Epilogue epilogue{.total_scale = tokens};
    gemm::Dequantization dequantization{.scale = call.scale.data(),
                                        .offset = call.negated,
                                        .dtype = DType::kFloat32,
                                        .group = group_,
                                        .group_stride = call.s.n,
                                        .column_stride = 1};
    if (call.left == DType::kInt8) {
      dequantization.a_zero_point = kShift;
      epilogue.addend = {call.offset.data(), DType::kFloat32, 0, 1};
    }
    Multiply(call, rows, right, y, epilogue, dequantization);
  }

  void Multiply(const Call& call, const gemm::Matrix& left, const gemm::Matrix& right, const gemm::Result& y,
                const gemm::Epilogue& epilogue, const gemm::Dequantization& dequantization = {}) const {
    if (!packed_) return gemm::Multiply(call.left, left, call.layout.dtype, right, y, epilogue, dequantization);
    gemm::PackedMatrix packed = packed_.matrix(right);
    packed.dtype = call.left;
    packed.dequantization = dequantization;
    gemm::Multiply(left, packed, y, epilogue);
  }

  DType result_;
  std::optional<QuantizedType> left_, right_;  // as x1_dtype and x2_dtype name them
  int64_t group_ = 0;                          // rows of x2 that share scales; 0: all
  int64_t words_depth_ = -1;                   // K, if x2 has words and the model tells, as the next
  std::optional<Shape> scales_;
  gemm::PackedWeight packed_;
  QuantizedWeight packed_layout_;
  TensorView x2_view_;  // type and shape
};

NPU_KERNEL(NPUQuantMatmul, QuantMatmulKernel);

}  // namespace
}  // namespace npu
