// LayerNormalization, RMSNormalization and onnxruntime's own name for the latter, over the trailing dimensions from
// `axis` on. Statistics and result are computed in float (double for float64) and rounded once; Scale and B broadcast
// to X.
#include <algorithm>
#include <cmath>

#include "ep/kernels/elementwise/broadcast.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/row_sum.h"

namespace npu {
namespace {

// A block in the type of the computation, float for 16-bit floats: the elements themselves, or a copy of them.
template <class T>
const ComputeType<T>* LoadRow(const T* x, int64_t step, ComputeType<T>* buffer, int64_t n) {
  if constexpr (kIsHalf<T>) {
    if (step == 1) {
      ToFloat(x, buffer, n);
    } else {
      std::fill(buffer, buffer + n, ToFloat(*x));
    }
    return buffer;
  } else {
    if (step == 1) return x;
    std::fill(buffer, buffer + n, *x);
    return buffer;
  }
}

// The sum of (x - shift)² or of x - shift, in C within a block and in double across blocks.
template <bool squares, class T>
double CentredSum(const T* x, ComputeType<T> shift, int64_t n) {
  double total = 0.0;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    ComputeType<T> buffer[kRowBlock];
    const ComputeType<T>* values = LoadRow(x + begin, 1, buffer, count);
    total += SumOf(values, count, [shift](auto v) { return squares ? (v - shift) * (v - shift) : v - shift; });
  });
  return total;
}

template <class T>
struct NormTask {
  BroadcastPlan<2> plan;  // of scale and bias against x
  const T* x;
  const T* scale;
  const T* bias;  // null: none
  T* y;
  float* mean;     // null: not requested
  float* inverse;  // null: not requested
  int64_t rows, n;
  double epsilon;
  bool centre;

  void Row(int64_t row) const {
    using C = ComputeType<T>;
    const T* from = x + row * n;
    const C centre_of = centre ? static_cast<C>(CentredSum<false>(from, C{0}, n) / static_cast<double>(n)) : C{0};
    const double variance = CentredSum<true>(from, centre_of, n) / static_cast<double>(n);
    const C factor = static_cast<C>(1.0 / std::sqrt(variance + epsilon));
    if (mean != nullptr) mean[row] = static_cast<float>(centre_of);
    if (inverse != nullptr) inverse[row] = static_cast<float>(factor);
    ForEachRow(plan, row * n, (row + 1) * n, [&](int64_t at, const std::array<int64_t, 2>& offset, int64_t count) {
      ForEachBlock(count, [&](int64_t begin, int64_t m) {
        C buffers[3][kRowBlock];
        const C* values = LoadRow(x + at + begin, 1, buffers[0], m);
        const C* scales = LoadRow(scale + offset[0] + begin * plan.step[0], plan.step[0], buffers[1], m);
        T* to = y + at + begin;
        C* results = buffers[0];
        if constexpr (!kIsHalf<T>) results = to;
        if (bias != nullptr) {
          const C* biases = LoadRow(bias + offset[1] + begin * plan.step[1], plan.step[1], buffers[2], m);
#pragma omp simd
          for (int64_t i = 0; i < m; ++i) results[i] = (values[i] - centre_of) * factor * scales[i] + biases[i];
        } else {
#pragma omp simd
          for (int64_t i = 0; i < m; ++i) results[i] = (values[i] - centre_of) * factor * scales[i];
        }
        if constexpr (kIsHalf<T>) FromFloat(results, to, m);
      });
    });
  }
};

void CheckBroadcastsTo(const char* op, const char* name, const TensorView& part, const TensorView& x) {
  NPU_OP_CHECK(op, part.dtype == x.dtype, "expected ", name, " of X's type ", NameOf(x.dtype), ", got ",
               NameOf(part.dtype));
  NPU_OP_CHECK(op, BroadcastShapes(op, part.shape, x.shape) == x.shape, "expected ", name,
               " that broadcasts to X's shape ", x.shape, ", got ", part.shape);
}

class NormKernel : public Kernel {
 public:
  NormKernel(const KernelInfo& info, const char* op, bool centre)
      : op_(op), centre_(centre), axis_(info.attributes.Int("axis")), epsilon_(info.attributes.Float("epsilon")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const TensorView scale = ctx.Input(1);
    const TensorView bias = ctx.Input(2);
    CheckBroadcastsTo(op_, "Scale", scale, x);
    if (bias) CheckBroadcastsTo(op_, "B", bias, x);
    const int axis = NormalizeAxis(op_, axis_, x.shape.rank());
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    Shape statistics(x.shape.begin(), static_cast<size_t>(axis));
    for (int d = axis; d < x.shape.rank(); ++d) statistics.push_back(1);
    const TensorView mean = centre_ ? ctx.Output(1, DType::kFloat32, statistics) : TensorView{};
    const TensorView inverse = ctx.Output(centre_ ? 2 : 1, DType::kFloat32, statistics);
    const int64_t rows = x.shape.Elements(0, axis);
    const int64_t n = x.shape.Elements(axis, x.shape.rank());
    NPU_OP_CHECK(op_, n > 0 || rows == 0, "expected elements to normalise from axis ", axis, ", got shape ", x.shape);
    if (x.elements() == 0) return;
    DispatchTypes(op_, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const NormTask<T> task{PlanBroadcast<2>(x.shape, {scale.shape, bias ? bias.shape : scale.shape}),
                             x.as<const T>(),
                             scale.as<const T>(),
                             bias.as<const T>(),
                             y.as<T>(),
                             mean.as<float>(),
                             inverse.as<float>(),
                             rows,
                             n,
                             epsilon_,
                             centre_};
      ctx.Launch(op_, [task] {
        ParallelFor(task.rows, RowGrain(task.n), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) task.Row(row);
        });
      });
    });
  }

 private:
  const char* op_;
  bool centre_;
  int64_t axis_;
  double epsilon_;
};

class LayerNormalizationKernel : public NormKernel {
 public:
  explicit LayerNormalizationKernel(const KernelInfo& info) : NormKernel(info, "LayerNormalization", true) {}
};
class RMSNormalizationKernel : public NormKernel {
 public:
  explicit RMSNormalizationKernel(const KernelInfo& info) : NormKernel(info, "RMSNormalization", false) {}
};

class SimplifiedLayerNormalizationKernel : public NormKernel {
 public:
  explicit SimplifiedLayerNormalizationKernel(const KernelInfo& info)
      : NormKernel(info, "SimplifiedLayerNormalization", false) {}
};

std::string WhyNormUnsupported(const NodeView& node) {
  if (node.attributes.Int("stash_type") != 1) return node.op_type + " with a stash_type other than float";
  if (node.inputs[0] != node.inputs[1]) return node.op_type + " with a scale of another type than X";
  return "";
}

OpDef LayerNormalizationDef(int version) {
  return {
      .type = "LayerNormalization",
      .since = version,
      .until = version,
      .inputs = {Input("X", kAllFloats), Input("Scale", kAllFloats), OptionalInput("B", kAllFloats)},
      .outputs = {Output("Y", kAllFloats), OptionalOutput("Mean", {DType::kFloat32}),
                  OptionalOutput("InvStdDev", {DType::kFloat32})},
      .attributes = {IntAttribute("axis", -1), FloatAttribute("epsilon", 1e-5), IntAttribute("stash_type", 1)},
      .may_alias = {{0, 0}},
      .make = MakeKernel<LayerNormalizationKernel>,
      .unsupported = WhyNormUnsupported,
  };
}

NPU_ONNX_KERNEL(LayerNormalizationDef(17));
// Of onnxruntime, whose optimizers write it for the operator sets before.
NPU_ONNX_KERNEL(LayerNormalizationDef(1));
NPU_ONNX_KERNEL({
    .type = "RMSNormalization",
    .since = 23,
    .until = 23,
    .inputs = {Input("X", kAllFloats), Input("scale", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = {IntAttribute("axis", -1), FloatAttribute("epsilon", 1e-5), IntAttribute("stash_type", 1)},
    .may_alias = {{0, 0}},
    .make = MakeKernel<RMSNormalizationKernel>,
    .unsupported = WhyNormUnsupported,
});

// No operator of ONNX, although it is in its domain.
NPU_ONNX_KERNEL({
    .type = "SimplifiedLayerNormalization",
    .since = 1,
    .until = 1,
    .inputs = {Input("X", kAllFloats), Input("scale", kAllFloats)},
    .outputs = {Output("Y", kAllFloats), OptionalOutput("inv_std_var", {DType::kFloat32})},
    .attributes = {IntAttribute("axis", -1), FloatAttribute("epsilon", 1e-5), IntAttribute("stash_type", 1)},
    .may_alias = {{0, 0}},
    .make = MakeKernel<SimplifiedLayerNormalizationKernel>,
    .unsupported = WhyNormUnsupported,
});

}  // namespace
}  // namespace npu
