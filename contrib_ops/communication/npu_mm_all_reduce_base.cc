// npu_mm_all_reduce_base(x1, x2, bias?, antiquant_scale?, antiquant_offset?, x3?, dequant_scale?, pertoken_scale?, …;
// hcom, antiquant_group_size, …) -> y. The semantics are in npu_mm_all_reduce_base.py.
#include "contrib_ops/communication/npu_mm_all_reduce_base.h"

#include <algorithm>
#include <string>

#include "ep/kernels/communication/overlap.h"
#include "ep/kernels/communication/rank_group.h"
#include "ep/kernels/communication/rank_product.h"
#include "ep/kernels/communication/sums.h"
#include "ep/kernels/communication/unused_arguments.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/scale_values.h"

namespace npu {
namespace {

using In = nodes::NPUMmAllReduceBase::In;
using Out = nodes::NPUMmAllReduceBase::Out;

constexpr const char* kOp = "npu_mm_all_reduce_base";

enum class Scheme { kFloat, kWeightOnly, kInt8 };

struct Tensors {
  TensorView x1, x2, bias, scale, offset, x3, dequant_scale, tokens, sent_scale, sum_scale;
  Scheme scheme = Scheme::kFloat;
  int64_t rows() const { return x1.shape.Elements(0, x1.shape.rank() - 1); }
  int64_t n() const { return x2.shape[1]; }
  DType result() const {
    if (scheme != Scheme::kInt8) return x1.dtype;
    return dequant_scale.dtype == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
  }
  Shape shape() const {
    Shape y = x1.shape;
    y[y.rank() - 1] = n();
    return y;
  }
};

class AllReduceKernel final : public Kernel {
 public:
  explicit AllReduceKernel(const KernelInfo& info)
      : left_(info.input_dtypes.empty() ? DType::kUndefined : info.input_dtypes[In::x1]),
        group_length_(info.attributes.Int("antiquant_group_size")) {
    const std::string reduction = info.attributes.String("reduce_op");
    NPU_OP_CHECK(kOp, reduction == "sum", "expected reduce_op 'sum', got '", Printable(reduction), "'");
    CheckUnused(kOp, info.attributes, "comm_turn", 0);
    const Shape sizes(info.attributes.Ints("group_sizes"));
    NPU_OP_CHECK(kOp, sizes.rank() == 0, "expected group_sizes of None on this device, got ", sizes);
    for (const char* name : {"y_dtype", "x1_dtype", "x2_dtype", "dequant_scale_dtype", "pertoken_scale_dtype"})
      CheckAbsent(kOp, info.attributes, name);
    CheckUnused(kOp, info.attributes, "comm_quant_mode", 0);
    NPU_OP_CHECK(kOp, group_length_ >= 0 && group_length_ <= INT32_MAX,
                 "expected antiquant_group_size from 0 to 2147483647, got ", group_length_);
    ranks_ = RankGroup(kOp, info, "hcom", nullptr);
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return input == In::x2 && weight_.Pack(kOp, left_, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = ranks_.Find(ctx);
    Tensors given;
    CheckForAll(ctx, kOp, group, [&] { given = Checked(ctx); });
    const TensorView y = ctx.Output(Out::y, given.result(), given.shape());
    if (!y || (y.elements() == 0 && RanksOf(group) == 1)) return;

    RankProduct product;
    product.left = given.x1.dtype;
    product.a = gemm::Matrix::RowMajor(given.x1.data, given.rows(), given.x1.shape.back());
    product.b = given.x2;
    ScaleValues column_scale, addend_scale;
    if (given.scheme == Scheme::kInt8) {
      column_scale = ScaleValues(ctx, given.dequant_scale);
      product.epilogue.column_scale = {column_scale.data(), column_scale.stride()};
      product.epilogue.row_scale = {given.tokens.as<float>(), 1};
    }
    if (given.scheme == Scheme::kWeightOnly)
      product.dequantization = {.scale = given.scale.data,
                                .offset = given.offset.data,
                                .dtype = given.scale.dtype,
                                .group = group_length_,
                                .group_stride = group_length_ == 0 ? 0 : given.n(),
                                .column_stride = given.scale.elements() == 1 ? 0 : 1};
    // The product has room for one addend: two of them are added before.
    float* sum = nullptr;
    if (given.bias && (given.bias.dtype == DType::kInt32 || !given.x3)) {
      product.epilogue.AddBias(given.bias, 0);
    } else if (given.bias) {
      sum = static_cast<float*>(ctx.Workspace(static_cast<size_t>(y.elements()) * sizeof(float)));
      product.epilogue.addend = {sum, DType::kFloat32, given.n(), 1};
    }
    if (given.x3 && sum == nullptr) product.epilogue.addend = {given.x3.data, given.x3.dtype, given.n(), 1};

    std::string call;
    ScaleValues sent_scale, sum_scale;  // of transfers: a rank alone has none
    void* scratch = nullptr;            // of an exchange, of which one runs at a time
    if (RanksOf(group) > 1) {
      const int64_t most = std::min(given.rows(), RowsOfPiece(given.rows(), BytesFor(y.dtype, given.n())));
      scratch = ctx.Workspace(given.sent_scale ? AllReduceInt8Scratch(most, given.n(), RanksOf(group))
                                               : AllReduceScratch(y.dtype, most * given.n(), RanksOf(group)));
      call = Concat("y ", NameOf(y.dtype), " ", y.shape, given.sent_scale ? " sent as int8" : "");
      sent_scale = ScaleValues(ctx, given.sent_scale);
      sum_scale = ScaleValues(ctx, given.sum_scale);
    }
    ctx.Launch(kOp, [this, product, column_scale, sent_scale, sum_scale, given, sum, y, group, call, scratch] {
      column_scale.Load();
      if (sum != nullptr && y.elements() > 0) AddTerms(given.bias, given.x3, sum);
      if (RanksOf(group) == 1) return product.MultiplyOwn(weight_, 0, given.rows(), {y.data, y.dtype, given.n()});
      sent_scale.Load();
      sum_scale.Load();
      Exchange(product, y, given.rows(), *group, call, {sent_scale.data(), sum_scale.data()}, scratch);
    });
  }

 private:
  Tensors Checked(OpContext& ctx) const {
    Tensors t;
    t.x1 = ctx.Input(In::x1);
    t.x2 = weight_.Of(ctx, In::x2);
    const int axes = t.x1.shape.rank();
    NPU_OP_CHECK(kOp,
                 t.x1 && t.x2 && axes >= 2 && axes <= 3 && t.x2.shape.rank() == 2 && t.x1.shape.back() == t.x2.shape[0],
                 "expected x1 [.., M, K] and x2 [K, N], got ", t.x1.shape, " and ", t.x2.shape);
    t.scheme = SchemeOf(t.x1.dtype, t.x2.dtype);
    t.bias = ctx.Input(In::bias);
    t.scale = Taken(ctx, In::antiquant_scale, "antiquant_scale", t.scheme, Scheme::kWeightOnly, true);
    t.offset = Taken(ctx, In::antiquant_offset, "antiquant_offset", t.scheme, Scheme::kWeightOnly, false);
    t.x3 = ctx.Input(In::x3);
    t.dequant_scale = Taken(ctx, In::dequant_scale, "dequant_scale", t.scheme, Scheme::kInt8, true);
    t.tokens = Taken(ctx, In::pertoken_scale, "pertoken_scale", t.scheme, Scheme::kInt8, false);
    CheckScales(t);
    const DType bias_type = t.scheme == Scheme::kInt8 ? DType::kInt32 : t.x1.dtype;
    NPU_OP_CHECK(kOp, !t.bias || (t.bias.shape == Shape{t.n()} && t.bias.dtype == bias_type), "expected bias ",
                 NameOf(bias_type), " [", t.n(), "], got ", NameOf(t.bias.dtype), " ", t.bias.shape);
    NPU_OP_CHECK(kOp, !t.x3 || (t.x3.shape == t.shape() && t.x3.dtype == t.result()), "expected x3 like y, ",
                 NameOf(t.result()), " ", t.shape(), ", got ", NameOf(t.x3.dtype), " ", t.x3.shape);
    t.sent_scale = ctx.Input(In::comm_quant_scale_1);
    t.sum_scale = ctx.Input(In::comm_quant_scale_2);
    NPU_OP_CHECK(kOp, t.sent_scale.present == t.sum_scale.present,
                 "expected comm_quant_scale_1 and comm_quant_scale_2 together, got one of them");
    CheckTransferScale("comm_quant_scale_1", t.sent_scale, t);
    CheckTransferScale("comm_quant_scale_2", t.sum_scale, t);
    return t;
  }

  static void CheckTransferScale(const char* name, const TensorView& scale, const Tensors& t) {
    const bool fits = scale.shape == Shape{t.n()} || scale.shape == Shape({1, t.n()});
    NPU_OP_CHECK(kOp, !scale || (fits && scale.dtype == t.result()), "expected ", name, " of y's dtype ",
                 NameOf(t.result()), " and shape [", t.n(), "] or [1, ", t.n(), "], got ", NameOf(scale.dtype), " ",
                 scale.shape);
  }

  static Scheme SchemeOf(DType x1, DType x2) {
    if (x1 == DType::kInt8) {
      NPU_OP_CHECK(kOp, x2 == DType::kInt8, "expected x2 of int8 with x1 of int8, got ", NameOf(x2));
      return Scheme::kInt8;
    }
    if (x2 == DType::kInt8) return Scheme::kWeightOnly;
    NPU_OP_CHECK(kOp, x1 == x2, "expected x2 of x1's dtype ", NameOf(x1), " or int8, got ", NameOf(x2));
    return Scheme::kFloat;
  }

  static const char* Title(Scheme scheme) {
    switch (scheme) {
      case Scheme::kFloat:
        return "x1 and x2 of floats";
      case Scheme::kWeightOnly:
        return "x1 of floats and x2 of int8";
      case Scheme::kInt8:
        return "x1 and x2 of int8";
    }
    return "";
  }

  // An input that one scheme takes, or needs.
  static TensorView Taken(OpContext& ctx, size_t input, const char* name, Scheme scheme, Scheme taker, bool needed) {
    const TensorView view = ctx.Input(input);
    NPU_OP_CHECK(kOp, !view || scheme == taker, "expected no ", name, " with ", Title(scheme), ", got one");
    NPU_OP_CHECK(kOp, view || scheme != taker || !needed, "expected ", name, " with ", Title(scheme), ", got none");
    return view;
  }

  void CheckScales(const Tensors& t) const {
    if (t.scheme == Scheme::kInt8) {
      CheckPerColumn(kOp, "dequant_scale", t.dequant_scale, t.n());
      NPU_OP_CHECK(kOp, !t.tokens || t.tokens.shape == Shape{t.rows()}, "expected pertoken_scale of shape [", t.rows(),
                   "], got ", t.tokens.shape);
    }
    if (t.scheme != Scheme::kWeightOnly) return;
    if (group_length_ == 0) {
      CheckPerColumn(kOp, "antiquant_scale", t.scale, t.n());
    } else {
      const int64_t k = t.x2.shape[0], groups = k == 0 ? 0 : (k - 1) / group_length_ + 1;
      NPU_OP_CHECK(kOp, t.scale.shape == Shape({groups, t.n()}), "expected antiquant_scale of shape [", groups, ", ",
                   t.n(), "], groups of ", group_length_, " rows, got ", t.scale.shape);
    }
    NPU_OP_CHECK(kOp, t.scale.dtype == t.x1.dtype, "expected antiquant_scale of x1's dtype ", NameOf(t.x1.dtype),
                 ", got ", NameOf(t.scale.dtype));
    NPU_OP_CHECK(kOp, !t.offset || (t.offset.shape == t.scale.shape && t.offset.dtype == t.scale.dtype),
                 "expected antiquant_offset like antiquant_scale, ", NameOf(t.scale.dtype), " ", t.scale.shape,
                 ", got ", NameOf(t.offset.dtype), " ", t.offset.shape);
  }

  static void AddTerms(const TensorView& bias, const TensorView& x3, float* sum) {
    const int64_t n = bias.elements();
    DispatchFloats(kOp, bias.dtype, [&](auto tag) {
      using T = decltype(tag);
      ParallelFor(x3.elements() / n, std::max<int64_t>(1, 16384 / n), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          ToFloat(x3.as<T>() + row * n, sum + row * n, n);
          for (int64_t i = 0; i < n; ++i) sum[row * n + i] += ToFloat(bias.as<T>()[i]);
        }
      });
    });
  }

  // While the ranks add a piece of the rows, each multiplies the next.
  void Exchange(RankProduct product, const TensorView& y, int64_t rows, Communicator& group, const std::string& call,
                const TransferScales& scales, void* scratch) const {
    const auto turn = group.Turn();
    const int64_t n = y.shape.back(), step = RowsOfPiece(rows, BytesFor(y.dtype, n));
    const int64_t pieces = (rows + step - 1) / step;
    Overlap overlap(pieces > 1);
    overlap.Add([&] { group.Agree(kOp, call); });
    product.PackFor(pieces, weight_);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t count = std::min(step, rows - begin);
      char* piece = y.as<char>() + BytesFor(y.dtype, begin * n);
      overlap.Compute([&] { product.MultiplyOwn(weight_, begin, count, {piece, y.dtype, n}); });
      overlap.Add([&group, &y, &scales, piece, count, n, scratch] {
        if (scales.terms == nullptr) return AllReduce(group, kOp, y.dtype, piece, count * n, scratch);
        AllReduceInt8(group, kOp, y.dtype, piece, count, n, scales, scratch);
      });
    }
    overlap.Wait();
  }

  DType left_;  // of x1, if the model tells
  int64_t group_length_;
  RankGroup ranks_;
  RankWeight weight_;
};

NPU_RANK_KERNEL(NPUMmAllReduceBase, AllReduceKernel, kOp, "hcom");

}  // namespace
}  // namespace npu
